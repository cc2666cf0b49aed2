package identity

import (
	"crypto"
	"crypto/ed25519"
	"fmt"
	"reflect"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
)

// Sign issues a token with the active key, and gives it an ID if the claims have none. Claims without a value are left
// out. The error wraps an *Error for claims that a verifier would refuse, such as those without an ExpiresAt or an
// audience.
func (k *Keyring) Sign(c Claims) (string, error) {
	ring := k.current.Load()
	return sign(c, ring.infos[0].ID, ring.signer)
}

// CheckSign returns the error that the Sign of any key ring returns for the claims.
func CheckSign(c Claims) error {
	_, err := sign(c, uuid.Nil.String(), ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	return err
}

func sign(c Claims, keyID string, key ed25519.PrivateKey) (string, error) {
	if c.ID == "" {
		c.ID = uuid.NewString()
	}
	if err := c.check(); err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	if c.ExpiresAt == 0 {
		return "", fmt.Errorf("sign token: %w", errNoExpiry)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c.ByName())
	token.Header["kid"] = keyID
	signed, err := token.SignedString(key)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	// The token must read back as the same claims: a name that is not UTF-8 would come back as another one.
	u, err := Check(signed)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	if !reflect.DeepEqual(u.Claims, c) {
		return "", fmt.Errorf("sign token: %w", refuse(ReasonClaims, "a claim is not valid UTF-8"))
	}
	return signed, nil
}

// Signer returns the active key's ID and the key itself, which signs anything. Tests need it for bad tokens, which Sign
// refuses to make.
func (k *Keyring) Signer() (keyID string, key crypto.Signer) {
	ring := k.current.Load()
	return ring.infos[0].ID, ring.signer
}

// ByName returns the claims under the names that they have in a token.
func (c *Claims) ByName() jwt.MapClaims {
	m := jwt.MapClaims{}
	for field, value := range reflect.ValueOf(*c).Fields() {
		if !value.IsZero() {
			m[field.Tag.Get("claim")] = value.Interface()
		}
	}
	if len(c.Audience) == 1 {
		m["aud"] = c.Audience[0] // as Nomad writes it, and RFC 7519 section 4.1.3 allows
	}
	return m
}
