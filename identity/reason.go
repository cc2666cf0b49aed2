package identity

import "errors"

// Reason is why a token was refused: a closed set, fit for a metric's label.
type Reason string

// Faults of the token's form. Finding one takes no look-up and no computation.
const (
	ReasonTooLong   Reason = "too_long"  // over MaxTokenLength
	ReasonMalformed Reason = "malformed" // not three canonical base64url segments, the last as long as alg wants
	ReasonHeader    Reason = "header"    // not strict JSON, or more than alg, kid and typ
	ReasonAlgorithm Reason = "algorithm" // alg is none of those that are known, or not that of the key
	ReasonKeyID     Reason = "key_id"    // kid missing, or not of letters, digits, '.', '_' and '-'
	// ReasonClaims means that the claims are not strict JSON, or that one is missing, of a wrong type or out of range. If
	// the issuer decides whether it may be missing, that is found after the signature.
	ReasonClaims Reason = "claims"
)

// The signer is unknown. A limiter counts these, because they cost a look-up or a verification.
const (
	ReasonUnknownKey Reason = "unknown_key"
	ReasonSignature  Reason = "signature"
)

// The signature is good, and something else is wrong.
const (
	ReasonExpired     Reason = "expired"
	ReasonNotYetValid Reason = "not_yet_valid" // nbf or iat lies ahead
	ReasonLifetime    Reason = "lifetime"      // exp lies further ahead than the verifier allows
	ReasonAudience    Reason = "audience"
	ReasonIssuer      Reason = "issuer"
	ReasonRole        Reason = "role" // another issuer's key speaks for the operator
)

// Error says why a token is refused. Its text holds no byte of the token.
type Error struct {
	Reason Reason
	Detail string
}

func (e *Error) Error() string { return "token refused: " + string(e.Reason) + ": " + e.Detail }

// ReasonOf returns the reason of the Error in err's chain, and whether there is one.
func ReasonOf(err error) (Reason, bool) {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason, true
	}
	return "", false
}

func refuse(reason Reason, detail string) *Error { return &Error{Reason: reason, Detail: detail} }
