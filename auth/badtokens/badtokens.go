// Package badtokens is a catalogue of tokens that a verifier of workload identities must refuse. There is one kind for
// each fault that is known of JWT libraries, of keys and of workload identities. Each kind has a name, a description of
// the fault, and the reason and status with which package auth refuses it. Nothing but the named fault is wrong with a
// token: unless the fault is in the signature, the verifier's own key has signed the token.
//
// Tests, the command line and auth/authtest use this one list. To add a kind, add a row to the file of its class, such
// as kinds_time.go, with the reason. The package verifies no tokens and holds no key that anybody trusts.
//
// Names, reasons and the meaning of Strict and Foreign stay as they are; kinds may be added.
package badtokens

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"taskapi/auth"
)

// ErrNotApplicable is returned for a kind that can't be made of the good token, because the fault needs what that token
// does not have.
var ErrNotApplicable = errors.New("no token of this kind can be made of this good token")

// Class is the part of a token that a kind's fault is in.
type Class string

// The classes, in the order of a verifier's work.
const (
	Form      Class = "form"      // segments, base64url, size
	Algorithm Class = "algorithm" // alg
	Header    Class = "header"    // other members, JSON
	KeyID     Class = "kid"       // which key
	Signature Class = "signature" // by whom, of what
	JSON      Class = "json"      // the claims as a text
	Time      Class = "time"      // exp, nbf, iat
	Audience  Class = "audience"  // aud
	Claims    Class = "claims"    // all others: whose token it is
)

// Kind is one way in which a token is bad.
type Kind struct {
	Name  string // in small letters with dashes, never changed
	Class Class
	Wrong string // what is wrong with the token

	// Reason is why package auth refuses the token, when Good.Key is a key of its own ring.
	Reason auth.Reason

	// Strict kinds are those that the standards (RFC 7515 to 7519, RFC 8725) let a verifier accept, or that well-known
	// libraries accept. Package auth refuses them so that no two readers read a token differently. Every verifier of
	// workload identities has to refuse the other kinds.
	Strict bool

	// Foreign kinds are refused when Good.Key is another issuer's, which the verifier trusts under Good.Claims.Issuer.
	// Keys of the verifier's own ring may vouch for any issuer.
	Foreign bool

	keys string // beginnings of the algs of the good tokens that the kind can be made of; empty: of all
	make maker
}

// isFor reports whether the kind can be made of a token with that alg.
func (k Kind) isFor(alg string) bool {
	begins := func(beginning string) bool { return strings.HasPrefix(alg, beginning) }
	return (k.keys == "" || slices.ContainsFunc(strings.Fields(k.keys), begins)) && k.Name != "alg-"+strings.ToLower(alg)
}

// maker makes a bad token. It returns "" when its fault can't be made of the good token.
type maker func(base) string

// row is a kind in the list of its class.
type row struct {
	name, wrong string
	make        maker
}

// Status returns the HTTP status with which package auth refuses the kind.
func (k Kind) Status() int { return k.Reason.Status() }

// Token returns a bad token of the kind. The error is ErrNotApplicable, wrapped.
func (k Kind) Token(g Good) (string, error) {
	token := ""
	if k.isFor(g.Key.Algorithm()) {
		token = k.make(base{g})
	}
	if token == "" && k.Reason != auth.NoToken {
		return "", fmt.Errorf("%w: %s", ErrNotApplicable, k.Wrong)
	}
	return token, nil
}

var all = sync.OnceValue(func() (all []Kind) {
	for _, c := range []struct {
		class Class
		kinds []Kind
	}{
		{Form, formKinds()},
		{Algorithm, algorithmKinds()},
		{Header, headerKinds()},
		{KeyID, keyIDKinds()},
		{Signature, signatureKinds()},
		{JSON, jsonKinds()},
		{Time, timeKinds()},
		{Audience, audienceKinds()},
		{Claims, claimsKinds()},
	} {
		for _, k := range c.kinds {
			k.Class = c.class
			all = append(all, k)
		}
	}
	return all
})

// All returns every kind that can be made of a token of taskapi's own, in the order of the classes.
func All() []Kind { return For("EdDSA") }

// For returns every kind that can be made of a token with that alg: EdDSA, RS256, ES256, ES384 or ES512.
func For(alg string) []Kind {
	return slices.DeleteFunc(slices.Clone(all()), func(k Kind) bool { return !k.isFor(alg) })
}

// Find returns the kind of that name.
func Find(name string) (Kind, bool) {
	i := slices.IndexFunc(all(), func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return all()[i], true
}

// InHeader reports whether an HTTP header carries the token unchanged. A token with a control character, with a blank
// at either end, or without any character is not sent, or arrives as another one.
func InHeader(token string) bool {
	control := func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }
	return token != "" && strings.Trim(token, " \t") == token && !strings.ContainsFunc(token, control)
}

// forKeys restricts kinds to the algorithms that begin so.
func forKeys(beginnings string, all []Kind) []Kind {
	for i := range all {
		all[i].keys = beginnings
	}
	return all
}

func kinds(reason auth.Reason, rows []row) []Kind { return like(Kind{Reason: reason}, rows) }

func strict(reason auth.Reason, rows []row) []Kind {
	return like(Kind{Reason: reason, Strict: true}, rows)
}

// like returns kinds that take from another kind everything that a row leaves out.
func like(k Kind, rows []row) (all []Kind) {
	for _, r := range rows {
		k.Name, k.Wrong, k.make = r.name, r.wrong, r.make
		all = append(all, k)
	}
	return all
}
