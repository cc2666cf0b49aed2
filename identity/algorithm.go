package identity

import (
	"slices"

	"github.com/golang-jwt/jwt/v5"
)

// algorithm is a signature algorithm that a key can be for. A token's alg must be that of the key, which the key set
// decides, never the token.
type algorithm struct {
	name   string // alg (RFC 7518 section 3.1, RFC 8037 section 3.1)
	method jwt.SigningMethod
	// Length of a signature in bytes: RFC 8032 section 5.1.6, RFC 7518 section 3.4, and a modulus from minModulus to
	// maxModulus bits.
	shortest, longest int
}

// eddsa is the algorithm of all tokens of ours: Ed25519 as RFC 8037 section 3.1 names it.
var eddsa = &algorithm{"EdDSA", jwt.SigningMethodEdDSA, 64, 64}

// algorithms are those that tokens may have. RFC 7518 knows two other kinds: those with a secret, which a verifier has
// to share, and PSS, which no issuer of workload identities was seen to use.
var algorithms = []*algorithm{
	eddsa,
	{"RS256", jwt.SigningMethodRS256, minModulus / 8, maxModulus / 8},
	{"RS384", jwt.SigningMethodRS384, minModulus / 8, maxModulus / 8},
	{"RS512", jwt.SigningMethodRS512, minModulus / 8, maxModulus / 8},
	{"ES256", jwt.SigningMethodES256, 64, 64},
	{"ES384", jwt.SigningMethodES384, 96, 96},
	{"ES512", jwt.SigningMethodES512, 132, 132},
}

func (a *algorithm) fits(n int) bool { return a.shortest <= n && n <= a.longest }

// algorithmOf returns the algorithm of that name, or nil.
func algorithmOf(name string) *algorithm {
	i := slices.IndexFunc(algorithms, func(a *algorithm) bool { return a.name == name })
	if i < 0 {
		return nil
	}
	return algorithms[i]
}
