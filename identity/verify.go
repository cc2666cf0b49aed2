package identity

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// DefaultMaxTTL is how far ahead exp may lie unless configured: the year that an identity without a ttl lives, and a
	// day for leap years.
	DefaultMaxTTL = 366 * 24 * time.Hour
	// Leeway is how much an issuer's clock may be ahead of ours. It is allowed for iat and nbf, never for exp.
	Leeway = time.Second
)

// leeway is Leeway in seconds.
const leeway = int64(Leeway / time.Second)

// VerifierConfig holds the issuers that a Verifier trusts and the tokens that it accepts.
type VerifierConfig struct {
	// Local is the source of our own keys, the key ring. Required. Its keys take precedence over others with the same ID,
	// and they alone can sign for the operator.
	Local KeySource
	// Foreign are other issuers, whose keys are looked up in this order. They can sign for tasks.
	Foreign []Issuer
	// Audiences are the audiences accepted: a token must name one of them. Empty means DefaultAudience alone.
	Audiences []string
	// MaxTTL bounds how far ahead exp may lie. 0 means DefaultMaxTTL.
	MaxTTL time.Duration
}

// Issuer is another issuer, with the tokens that its keys can sign.
type Issuer struct {
	// Keys are its keys. Required.
	Keys KeySource
	// Name is the iss that its tokens must have. Empty means that they must have none.
	Name string
	// Audiences are accepted in its tokens instead of the verifier's. Empty means the verifier's.
	Audiences []string
	// Mapping says whose its tokens are. Nil means that they have Nomad's claims.
	Mapping *Mapping
	// NoExpiry accepts tokens without exp, such as Nomad's default identities. Such a token must have an iat, and ends
	// MaxTTL after it. Verified.Stale says how long a verdict on it holds. NoExpiry excludes a Mapping.
	NoExpiry bool
}

// Verifier verifies tokens. It takes no lock, does no I/O and never waits; any number of goroutines may use it.
type Verifier struct {
	local     KeySource
	foreign   []Issuer
	audiences []string
	maxTTL    int64 // seconds
}

// NewVerifier returns a verifier, or an error that says what is wrong with the configuration.
func NewVerifier(c VerifierConfig) (*Verifier, error) {
	if c.Local == nil || slices.ContainsFunc(c.Foreign, func(i Issuer) bool { return i.Keys == nil }) {
		return nil, errors.New("make a token verifier: a key source is nil")
	}
	if c.MaxTTL < 0 {
		return nil, fmt.Errorf("make a token verifier: longest lifetime %v is negative", c.MaxTTL)
	}
	unnamed := func(i Issuer) bool { return slices.Contains(i.Audiences, "") }
	if slices.Contains(c.Audiences, "") || slices.ContainsFunc(c.Foreign, unnamed) {
		return nil, errors.New("make a token verifier: an audience is empty")
	}
	if len(c.Audiences) == 0 {
		c.Audiences = []string{DefaultAudience}
	}
	for _, is := range c.Foreign {
		if is.Mapping == nil {
			continue
		}
		if err := is.Mapping.Check(); err != nil {
			return nil, fmt.Errorf("make a token verifier: %w", err)
		}
		if is.NoExpiry {
			return nil, errors.New("make a token verifier: only an issuer of Nomad's claims may leave out exp")
		}
	}
	c.Foreign = slices.Clone(c.Foreign)
	for i := range c.Foreign {
		if len(c.Foreign[i].Audiences) == 0 {
			c.Foreign[i].Audiences = c.Audiences
		}
	}
	return &Verifier{
		local:     c.Local,
		foreign:   c.Foreign,
		audiences: slices.Clone(c.Audiences),
		maxTTL:    int64(cmp.Or(c.MaxTTL, DefaultMaxTTL) / time.Second),
	}, nil
}

// noExpiryHeld is how long, in seconds, a verdict on a token without exp holds.
const noExpiryHeld = 60

// Verified is a token that was good when it was verified. It may be kept; CheckTime and Trusts report whether it still
// is good. It must not be changed.
type Verified struct {
	Claims Claims
	KeyID  string

	key   trustedKey
	stale int64 // the second from which it has to be verified again; 0: never
}

// Stale reports whether the token has to be verified again before it is used, because it names no end.
func (t *Verified) Stale(now time.Time) bool { return t.stale != 0 && now.Unix() >= t.stale }

// Mapped reports whether the issuer's Mapping says whose token it is.
func (t *Verified) Mapped() bool { return t.key.issuer != nil && t.key.issuer.Mapping != nil }

// Within returns a Mapped token with the allocation, namespace and job that its claims leave out, and other tokens as
// they are.
func (t *Verified) Within(allocationID, namespace, job string) *Verified {
	if !t.Mapped() {
		return t
	}
	filled := *t
	c := &filled.Claims
	c.AllocationID, c.Namespace = cmp.Or(c.AllocationID, allocationID), cmp.Or(c.Namespace, namespace)
	c.JobID = cmp.Or(c.JobID, job)
	return &filled
}

// Foreign reports whether another issuer's key verified the token.
func (t *Verified) Foreign() bool { return t.key.issuer != nil }

type trustedKey struct {
	*publicKey
	issuer *Issuer // nil for our own
}

// These errors are made once, since every use of a kept Verified may return one.
var (
	errAlgorithm   = refuse(ReasonAlgorithm, "alg is not that of the key")
	errNoExpiry    = refuse(ReasonClaims, "exp is missing")
	errUnmapped    = refuse(ReasonClaims, "a claim that says whose token it is is missing, or does not match its pattern")
	errUnknownKey  = refuse(ReasonUnknownKey, "no trusted key has its kid")
	errSignature   = refuse(ReasonSignature, "the signature is not that of the key")
	errExpired     = refuse(ReasonExpired, "exp has passed")
	errNotYetValid = refuse(ReasonNotYetValid, "nbf or iat lies ahead")
	errLifetime    = refuse(ReasonLifetime, "exp lies further ahead than is allowed")
	errAudience    = refuse(ReasonAudience, "aud names no accepted audience")
	errIssuer      = refuse(ReasonIssuer, "iss is not that of the issuer whose key it is")
	errRole        = refuse(ReasonRole, "a key of another issuer speaks for the operator")
)

// Verify checks form, key, signature and claims, in this order, so that a reason about claims is never given for a bad
// signature. The error is an *Error.
func (v *Verifier) Verify(token string, now time.Time) (*Verified, error) {
	u, err := Check(token)
	if err != nil {
		return nil, err
	}
	verified, err := v.VerifyChecked(u, now)
	if err != nil {
		return nil, err
	}
	return verified, nil
}

// VerifyChecked verifies a token that Check has accepted, as Verify does. If a trusted key has signed a token that is
// refused, the token is returned beside the error, and its claims can be believed.
func (v *Verifier) VerifyChecked(u *Unverified, now time.Time) (*Verified, error) {
	key := v.lookup(u.KeyID)
	if key.publicKey == nil {
		return nil, errUnknownKey
	}
	if key.alg != u.algorithm {
		return nil, errAlgorithm
	}
	if err := u.algorithm.method.Verify(u.signed, u.signature, key.verifier); err != nil {
		return nil, errSignature
	}
	verified := &Verified{Claims: u.Claims, KeyID: u.KeyID, key: key}
	if issuer := key.issuer; issuer != nil && issuer.Mapping != nil {
		var err *Error
		if verified.Claims, err = issuer.Mapping.apply(u.document, &u.Claims); err != nil {
			return verified, err
		}
	}
	if c := &verified.Claims; c.ExpiresAt == 0 {
		if key.issuer == nil || !key.issuer.NoExpiry || c.IssuedAt == 0 {
			return verified, errNoExpiry
		}
		c.ExpiresAt, verified.stale = c.IssuedAt+v.maxTTL, now.Unix()+noExpiryHeld
	}
	if err := verified.CheckTime(now); err != nil {
		return verified, err
	}
	return verified, v.checkClaims(&verified.Claims, now.Unix(), key.issuer)
}

// checkClaims checks the claims whose verdict does not change while the token lives.
func (v *Verifier) checkClaims(c *Claims, now int64, issuer *Issuer) error {
	audiences := v.audiences
	if issuer != nil {
		audiences = issuer.Audiences
	}
	switch {
	case c.ExpiresAt > now+v.maxTTL+leeway:
		return errLifetime
	case !slices.ContainsFunc(c.Audience, func(a string) bool { return slices.Contains(audiences, a) }):
		return errAudience
	case issuer != nil && c.Issuer != issuer.Name:
		return errIssuer
	case issuer != nil && c.Role != RoleTask:
		return errRole
	}
	return nil
}

// lookup finds a key by its ID: a few map look-ups whether it exists or not.
func (v *Verifier) lookup(id string) trustedKey {
	if key := v.local.Keys().lookup(id); key != nil {
		return trustedKey{key, nil}
	}
	for i := range v.foreign {
		if key := v.foreign[i].Keys.Keys().lookup(id); key != nil {
			return trustedKey{key, &v.foreign[i]}
		}
	}
	return trustedKey{}
}

// CheckTime checks that now lies in the token's lifetime. The error is an *Error with ReasonExpired, from the second of
// exp on, or ReasonNotYetValid. It allocates nothing.
func (t *Verified) CheckTime(now time.Time) error {
	switch at := now.Unix(); {
	case at >= t.Claims.ExpiresAt:
		return errExpired
	case t.Claims.NotBefore > at+leeway || t.Claims.IssuedAt > at+leeway:
		return errNotYetValid
	}
	return nil
}

// Trusts reports whether the key that verified the token is still trusted: the same key, under the same ID, of the same
// issuer. It allocates nothing.
func (v *Verifier) Trusts(t *Verified) bool {
	key := v.lookup(t.KeyID)
	return key.publicKey != nil && key.issuer == t.key.issuer && key.bytes == t.key.bytes
}
