package review

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/internal/schema"
)

// differs reports that some field that is set in both is not the same.
func differs[T any](got, want *T) bool {
	if got == nil || want == nil {
		return false
	}
	g, w := reflect.ValueOf(got).Elem(), reflect.ValueOf(want).Elem()
	for i := range g.NumField() {
		a, b := g.Field(i), w.Field(i)
		if a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil() && !reflect.DeepEqual(a.Interface(), b.Interface()) {
			return true
		}
	}
	return false
}

// maxName is the longest name of a job, group or task: all three are in paths, and a file name has at most 255 bytes.
const maxName = 128

// checkPart refuses texts that must not be part of an identity's sub claim. A colon separates the parts, so it could
// make the claim equal to another task's. Invisible characters would make claims and log lines look like another
// task's.
func (r *reviewer) checkPart(feature, name string) {
	if strings.Contains(name, ":") {
		r.refuse(feature, "%q has a colon in it, which separates the parts of an identity's sub claim; use another character",
			name)
	}
	hidden := func(c rune) bool { return c == utf8.RuneError || !unicode.IsPrint(c) }
	if i := strings.IndexFunc(name, hidden); i >= 0 {
		c, _ := utf8.DecodeRuneInString(name[i:])
		r.refuse(feature, "%q has %U in it, which can't be seen; use letters, digits, punctuation and plain spaces",
			name, c)
	}
}

// checkName refuses a name that can't be a directory's, or that another directory has.
func (r *reviewer) checkName(kind, name string) {
	r.checkPart(kind+" name", name)
	switch {
	case name == "":
		r.refuse(kind+" name", "the name is empty")
	case len(name) > maxName:
		r.refuse(kind+" name", "the name has %d bytes; at most %d are possible", len(name), maxName)
	case strings.ContainsAny(name, `/\`):
		r.refuse(kind+" name", "the name %q has a slash or backslash in it", name)
	case name == "." || name == "..":
		r.refuse(kind+" name", "%q is no name but a way through directories", name)
	}
}

// ownNames are the names in the allocation directory besides the tasks' directories. A name that begins with one of
// them and a dot is a draft or an older version of that file; other drafts begin with a dot.
var ownNames = []string{
	"alloc", "operator.sock", "operator.token", "operator.secrets", "settings.json", "state.db",
	"keeper.sock", "keeper.json", "keeper.log", "taskapi.log", "launches.json", "users.json",
}

func (r *reviewer) checkTaskName(name string) {
	r.checkName("task", name)
	own := func(file string) bool { return name == file || strings.HasPrefix(name, file+".") }
	switch {
	case slices.ContainsFunc(ownNames, own):
		r.refuse("task name", "%q has its place in the allocation directory already; choose another name", name)
	case len(name) > 2 && name[0] == '.':
		r.refuse("task name",
			"%q begins with a dot, as what is being written in the allocation directory does; choose another name", name)
	}
}

func (r *reviewer) restart(p *api.RestartPolicy) {
	if len(r.path) > 1 && reflect.DeepEqual(p, r.group.RestartPolicy) {
		return // a task that has its group's policy: the group has the finding
	}
	restrict(r, restartLimits, p)
}

func (r *reviewer) ports(n *api.NetworkResource) {
	seen := map[string]bool{}
	for _, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
		if p.Label == "" {
			r.refuse("port", "a port has no label")
		}
		if strings.Contains(p.Label, "/") {
			r.refuse("port", "the label %q has a slash in it, which comes after a task's name; use another character", p.Label)
		}
		if seen[envName(p.Label)] {
			r.refuse("port", "there are two ports labelled %q, or with labels that differ only in - and _", p.Label)
		}
		seen[envName(p.Label)] = true
		r.in("port", p.Label, func() { restrict(r, portLimits, &p) })
	}
	for _, p := range n.ReservedPorts {
		r.in("port", p.Label, func() { restrict(r, staticPortLimits, &p) })
	}
}

// portsTogether compares the ports of the group's network with those of the tasks' own.
func (r *reviewer) portsTogether() {
	labels, static := map[string]bool{}, map[int]string{}
	all := interfaces.Ports(interfaces.Networks(r.group))
	for _, p := range all {
		if other, taken := static[p.Value]; taken && p.Value != 0 {
			r.refuse("port", "ports %q and %q are both static = %d", other, p.Label, p.Value)
		}
		static[p.Value] = p.Label
		if !strings.Contains(p.Label, "/") {
			labels[envName(p.Label)] = true
		}
	}
	for _, p := range all {
		if _, own, ok := strings.Cut(p.Label, "/"); ok && labels[envName(own)] {
			r.refuse("port", "port %q has the label of a port of the group", p.Label)
		}
	}
}

// envName returns the label as NOMAD_PORT_... has it: other characters than letters and digits become _.
func envName(label string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, label)
}

func (r *reviewer) identities(t *api.Task) {
	all := t.Identities
	if t.Identity != nil {
		all = slices.Concat([]*api.WorkloadIdentity{t.Identity}, all)
	}
	name := func(w *api.WorkloadIdentity) string {
		if w == t.Identity {
			return schema.DefaultIdentity
		}
		return cmp.Or(w.Name, schema.DefaultIdentity)
	}
	eachNamed(r, "identity", "identities", all, name, func(w *api.WorkloadIdentity) {
		r.in("identity", cmp.Or(w.Name, schema.DefaultIdentity), func() {
			apply(r, identityRows, w)
			restrict(r, identityLimits, w)
			if longest := r.host.LongestTTL; longest > 0 && w.TTL > longest && r.forAPI(w, t) {
				r.refuse("identity ttl", "the API takes no token that is good for longer than %v: give a shorter ttl, "+
					"or a longer setting identity.ttl", longest)
			}
			r.claims(w, t)
		})
	})
}

// IdentityFeature is the feature of the finding that no token of an identity can be issued.
const IdentityFeature = "identity"

// claims refuses extra claims that the machine does not have, and an identity whose tokens can't be issued.
func (r *reviewer) claims(w *api.WorkloadIdentity, t *api.Task) {
	for _, name := range w.ExtraClaims {
		if !slices.Contains(r.host.ExtraClaims, name) {
			r.refuse("identity extra_claims", "the machine's settings have no claim %q: add it to "+
				"identity.optional_extra_claims, or name one of those that they have: %s", name,
				cmp.Or(strings.Join(r.host.ExtraClaims, ", "), "none"))
		}
	}
	if r.host.Issues == nil {
		return
	}
	if err := r.host.Issues(r.job, r.group, t, w); err != nil {
		r.refuse(IdentityFeature, "no token of it can be issued: %v", err)
	}
}

// forAPI reports whether the API takes the tokens of an identity of the task.
func (r *reviewer) forAPI(w *api.WorkloadIdentity, t *api.Task) bool {
	return w == t.Identity || len(w.Audience) == 0 ||
		slices.ContainsFunc(w.Audience, func(aud string) bool { return slices.Contains(r.host.Audiences, aud) })
}

// environment refuses names and values that can't be in a process's environment.
func (r *reviewer) environment(feature string, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			r.refuse(feature, "%q is no name of an environment variable", name)
		case strings.ContainsRune(env[name], 0):
			r.refuse(feature, "the value of %s has a NUL byte in it", name)
		}
	}
}
