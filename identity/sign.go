package identity

import (
	"crypto"
	"fmt"
	"reflect"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
)

// Sign issues a token with the active key. An ID is made where the claims have none; iss, iat, nbf and the like are left out where
// they are zero. The error wraps an *Error for claims that Check would refuse, such as those without an ExpiresAt or an audience.
func (k *Keyring) Sign(c Claims) (string, error) {
	if c.ID == "" {
		c.ID = uuid.NewString()
	}
	if err := c.check(); err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	ring := k.current.Load()
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c.wire())
	token.Header["kid"] = ring.infos[0].ID
	signed, err := token.SignedString(ring.signer)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	// What is issued must read back as what was meant: a name that is not UTF-8 would come back as another one.
	u, err := Check(signed)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	if !reflect.DeepEqual(u.Claims, c) {
		return "", fmt.Errorf("sign token: %w", refuse(ReasonClaims, "a claim is not valid UTF-8"))
	}
	return signed, nil
}

// Signer returns the active key's ID and the key itself, which signs anything: for the bad tokens that tests need, and that Sign refuses to
// make.
func (k *Keyring) Signer() (keyID string, key crypto.Signer) {
	ring := k.current.Load()
	return ring.infos[0].ID, ring.signer
}

// wire returns the claims under the names that they have in a token.
func (c *Claims) wire() jwt.MapClaims {
	m := jwt.MapClaims{claimExpiresAt: c.ExpiresAt, claimAudience: c.Audience}
	if len(c.Audience) == 1 {
		m[claimAudience] = c.Audience[0] // as Nomad writes it, and RFC 7519 section 4.1.3 allows
	}
	for name, at := range map[string]int64{claimIssuedAt: c.IssuedAt, claimNotBefore: c.NotBefore} {
		if at != 0 {
			m[name] = at
		}
	}
	for name, text := range map[string]string{
		claimID: c.ID, claimIssuer: c.Issuer, claimSubject: c.Subject, claimNamespace: c.Namespace, claimJobID: c.JobID,
		claimAllocationID: c.AllocationID, claimTask: c.Task, claimRole: string(c.Role), claimLife: c.Life,
	} {
		if text != "" {
			m[name] = text
		}
	}
	return m
}
