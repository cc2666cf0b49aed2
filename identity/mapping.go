package identity

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"taskapi/identity/internal/strictjson"
)

// Mapping says whose token it is that an issuer signs which knows nothing of allocations: a pattern for each claim that
// decides. Every claim must be a string, and match its pattern.
//
// A pattern is a text in which {task}, {namespace}, {job} and {allocation} stand for the task's name and so on, and *
// for anything. Each of them stands for one or more characters other than '/' and ':', so that no two readers see
// different parts. The pattern system:serviceaccount:prod:{task} is for the sub of Kubernetes, and
// spiffe://example.org/ns/{namespace}/task/{task} for that of a SPIFFE JWT-SVID.
type Mapping struct{ claims []mappedClaim }

type mappedClaim struct {
	path    []string // names of the members on the way to the claim
	pattern *regexp.Regexp
}

// mappedParts are the names in a pattern, and the claim of ours that each gives.
var mappedParts = map[string]func(*Claims) *string{
	"task":       func(c *Claims) *string { return &c.Task },
	"namespace":  func(c *Claims) *string { return &c.Namespace },
	"job":        func(c *Claims) *string { return &c.JobID },
	"allocation": func(c *Claims) *string { return &c.AllocationID },
}

// maxMapped bounds a mapping's claims, each of which is looked for at each first use of a token.
const maxMapped = 8

// Add adds a claim and its pattern. A claim that is a member of an object is named with a slash before each name, as in
// RFC 6901: /kubernetes.io/namespace. The error says what would be right.
func (m *Mapping) Add(claim, pattern string) error {
	path := []string{claim}
	if strings.HasPrefix(claim, "/") {
		path = strings.Split(claim[1:], "/")
		for i := range path {
			path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(path[i])
		}
	}
	same := func(other mappedClaim) bool { return slices.Equal(other.path, path) }
	switch {
	case slices.Contains(path, ""):
		return fmt.Errorf("%q names no claim: write sub, or /kubernetes.io/namespace for a member", claim)
	case len(m.claims) == maxMapped:
		return fmt.Errorf("claim %s: there are %d others, the most that are looked at", claim, maxMapped)
	case slices.ContainsFunc(m.claims, same):
		return fmt.Errorf("claim %s is there twice", claim)
	case len(path) > tokenLimits.Depth:
		return fmt.Errorf("claim %s: a token nests at most %d deep", claim, tokenLimits.Depth)
	}
	compiled, err := compilePattern(pattern, m.gives)
	if err != nil {
		return fmt.Errorf("claim %s: pattern %q: %w", claim, pattern, err)
	}
	m.claims = append(m.claims, mappedClaim{path, compiled})
	return nil
}

func (m *Mapping) gives(part string) bool {
	return slices.ContainsFunc(m.claims, func(c mappedClaim) bool { return c.pattern.SubexpIndex(part) > 0 })
}

// Check returns an error unless the mapping gives the task, without which a token would be every task's.
func (m *Mapping) Check() error {
	if !m.gives("task") {
		return errors.New("no claim gives the task: a pattern needs {task}, as in sub=system:serviceaccount:prod:{task}")
	}
	return nil
}

var wildcard = regexp.MustCompile(`\{[^{}]*\}|\*`)

// compilePattern returns the pattern as a regular expression with a group for each part.
func compilePattern(pattern string, given func(part string) bool) (*regexp.Regexp, error) {
	const any = `[^/:]+`
	var expr strings.Builder
	end, seen := 0, []string{}
	for _, at := range wildcard.FindAllStringIndex(pattern, -1) {
		between, part := pattern[end:at[0]], strings.Trim(pattern[at[0]:at[1]], "{}")
		if end > 0 && !strings.ContainsAny(between, "/:") {
			return nil, errors.New("between two parts there must be a '/' or ':', which no part contains")
		}
		expr.WriteString(regexp.QuoteMeta(between))
		switch {
		case part == "*":
			expr.WriteString(any)
		case mappedParts[part] == nil:
			return nil, fmt.Errorf("{%s} is no part: write {task}, {namespace}, {job}, {allocation} or *", part)
		case slices.Contains(seen, part) || given(part):
			return nil, fmt.Errorf("{%s} is there twice", part)
		default:
			expr.WriteString("(?P<" + part + ">" + any + ")")
			seen = append(seen, part)
		}
		end = at[1]
	}
	rest := pattern[end:]
	if strings.ContainsAny(expr.String()+rest, "\x00") || pattern == "" {
		return nil, errors.New("it is empty, or has a NUL")
	}
	return regexp.Compile(`\A` + expr.String() + regexp.QuoteMeta(rest) + `\z`)
}

// apply returns the claims of a token whose claims are the JSON document and, as far as everybody knows them, the
// standard ones. Claims that this package gives a meaning, such as nomad_task, have none in the tokens of such an
// issuer.
func (m *Mapping) apply(document string, standard *Claims) (Claims, *Error) {
	c := Claims{
		ID: standard.ID, Issuer: standard.Issuer, Audience: standard.Audience,
		IssuedAt: standard.IssuedAt, NotBefore: standard.NotBefore, ExpiresAt: standard.ExpiresAt,
	}
	for _, claim := range m.claims {
		var r strictjson.Reader
		r.Reset(document, tokenLimits)
		text, found := member(&r, claim.path)
		if r.End() != nil || !found {
			return c, errUnmapped
		}
		match := claim.pattern.FindStringSubmatch(text)
		if match == nil {
			return c, errUnmapped
		}
		for i, part := range claim.pattern.SubexpNames() {
			if part != "" {
				*mappedParts[part](&c) = match[i]
			}
		}
	}
	return c, nil
}

// member reads an object to its end and returns the text of the member with that path.
func member(r *strictjson.Reader, path []string) (text string, found bool) {
	for r.Object(); r.Next(); {
		switch {
		case r.Name() != path[0]:
			r.Skip()
		case len(path) > 1:
			text, found = member(r, path[1:])
		case r.IsString():
			text, found = r.Text(), true
		default:
			r.Skip()
		}
	}
	return text, found
}
