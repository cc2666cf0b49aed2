// Package badtokens is the catalogue of tokens that a verifier has to refuse: one kind for each fault that is known of JWT libraries, of keys
// and of workload identities. Each has a name that stays, what is wrong with it in words, and the reason and the status with which this door
// refuses it. Nothing but the named fault is wrong with a token of a kind: but for those that are about the signature, the verifier's own key
// has signed it, and it would be good at the time that it was made for.
//
// Tests, the command line and auth/authtest use this one list. It never verifies a token, and holds no key that anybody trusts.
//
// Names, reasons and the meaning of Strict and Foreign stay as they are; kinds may be added.
package badtokens

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"taskapi/auth"
)

// ErrNotApplicable is returned for a kind that can't be made of the good token: it takes away what that does not have.
var ErrNotApplicable = errors.New("no token of this kind can be made of this good token")

// Class is what the fault of a kind is in.
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
	Wrong string // what is wrong with it

	// Reason is why this door refuses it, when Good.Key is a key of its own ring.
	Reason auth.Reason

	// Strict kinds are those that the standards (RFC 7515 to 7519, RFC 8725) let a verifier accept, or that well-known libraries do. This door
	// refuses them so that no two readers read a token differently. Every verifier of workload identities has to refuse the others.
	Strict bool

	// Foreign kinds are refused when Good.Key is another issuer's, which the verifier trusts under Good.Claims.Issuer. Keys of this door's own ring
	// may vouch for any issuer.
	Foreign bool

	make func(base) (string, error)
}

// Status returns the HTTP status with which this door refuses the kind.
func (k Kind) Status() int { return k.Reason.Status() }

// Token returns a bad token of the kind. The error is ErrNotApplicable, wrapped.
func (k Kind) Token(g Good) (string, error) { return k.make(base{g}) }

// all is the catalogue.
var all = sync.OnceValue(func() []Kind {
	return slices.Concat(
		in(Form, forms()), in(Algorithm, algorithms()), in(Header, headers()), in(KeyID, keyIDs()), in(Signature, signatures()),
		in(JSON, texts()), in(Time, times()), in(Audience, audiences()), in(Claims, others()),
	)
})

func in(class Class, kinds []Kind) []Kind {
	for i := range kinds {
		kinds[i].Class = class
	}
	return kinds
}

// All returns every kind, in the order of the classes.
func All() []Kind { return slices.Clone(all()) }

// Find returns the kind of that name.
func Find(name string) (Kind, bool) {
	i := slices.IndexFunc(all(), func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return all()[i], true
}

// InHeader reports whether an HTTP header carries the token as it is. One with a control character, a blank at either end, or nothing in it
// can't be sent, or arrives as another.
func InHeader(token string) bool {
	return token != "" && strings.Trim(token, " \t") == token && !strings.ContainsFunc(token, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
}

// kind returns a kind whose maker can't fail.
func kind(name, wrong string, reason auth.Reason, make func(base) string) Kind {
	return Kind{Name: name, Wrong: wrong, Reason: reason, make: func(b base) (string, error) { return make(b), nil }}
}

// strict marks a kind as Strict.
func (k Kind) strict() Kind {
	k.Strict = true
	return k
}

// strictly marks all of them.
func strictly(kinds ...Kind) []Kind {
	for i := range kinds {
		kinds[i].Strict = true
	}
	return kinds
}
