package badtokens

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"taskapi/identity"
	"taskapi/internal/slice"
)

// Good describes a good token. All fields but OtherKeyID and Extra are required.
type Good struct {
	Key    Key
	Now    time.Time       // the verifier's
	Claims identity.Claims // good at Now
	Extra  map[string]any  // more claims, which replace those of the same name

	OtherKeyID string // of another key that the verifier trusts
}

// Token returns the good token.
func (g Good) Token() string {
	b := base{g}
	return b.token(b.header(""), b.claims().String())
}

type base struct{ Good }

// header returns the good header, with more members if wanted.
func (b base) header(more string) string { return headerOf(b.Key.Algorithm(), b.Key.ID, more) }

func headerOf(alg, kid, more string) string {
	return `{"alg":` + quote(alg) + `,"kid":` + quote(kid) + `,"typ":"JWT"` + more + `}`
}

func (b base) token(header, claims string) string {
	return b.sign(encode(header) + "." + encode(claims))
}

func (b base) sign(signed string) string { return signed + "." + encode(string(b.Key.Sign(signed))) }

func (b base) withHeader(header string) string { return b.token(header, b.claims().String()) }

func (b base) withClaims(claims string) string { return b.token(b.header(""), claims) }

// unsigned returns what is signed of a token with that header and the good claims.
func (b base) unsigned(header string) string {
	return encode(header) + "." + encode(b.claims().String())
}

func encode(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func quote(s string) string { return encodeJSON(s) }

// encodeJSON returns a value as JSON. A value that JSON can't express becomes its text.
func encodeJSON(value any) string {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if e.Encode(value) != nil {
		return quote(fmt.Sprint(value))
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// document is a JSON object, by name. Its values are texts of JSON.
type document map[string]string

func (b base) claims() document {
	d := document{}
	all := b.Claims.ByName()
	maps.Copy(all, b.Extra)
	for name, value := range all {
		d[name] = encodeJSON(value)
	}
	return d
}

// operators returns the good claims as the operator's of the same allocation.
func (b base) operators() document {
	subject := b.Claims.Subject
	if parts := strings.Split(subject, ":"); len(parts) == 6 {
		subject = strings.Join(append(parts[:4], "", string(identity.RoleOperator)), ":")
	}
	role := quote(string(identity.RoleOperator))
	return b.claims().without("nomad_task").with("sub", quote(subject)).with("taskapi_role", role)
}

func (d document) with(name, value string) document {
	d[name] = value
	return d
}

func (d document) without(name string) document {
	delete(d, name)
	return d
}

// value returns a member's value, null if there is none.
func (d document) value(name string) string { return cmp.Or(d[name], "null") }

// String returns the document's text, with its members sorted.
func (d document) String() string {
	members := slice.Map(slices.Sorted(maps.Keys(d)), func(name string) string { return quote(name) + ":" + d[name] })
	return "{" + strings.Join(members, ",") + "}"
}
