// Package identitytest makes key rings and good tokens for tests of this module. Package badtokens makes bad tokens.
package identitytest

import (
	"path/filepath"
	"testing"

	"taskapi/identity"
)

// Keyring returns a new key ring.
func Keyring(tb testing.TB) *identity.Keyring {
	tb.Helper()
	ring, err := identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(tb.TempDir(), "keyring")})
	if err != nil {
		tb.Fatal(err)
	}
	return ring
}

// Sign returns a token that the ring has signed.
func Sign(tb testing.TB, ring *identity.Keyring, c identity.Claims) string {
	tb.Helper()
	token, err := ring.Sign(c)
	if err != nil {
		tb.Fatal(err)
	}
	return token
}

// Rotate makes another key of the ring active, and returns the ID of the one before.
func Rotate(tb testing.TB, ring *identity.Keyring) string {
	tb.Helper()
	before := ring.Active().ID
	if _, err := ring.Rotate(); err != nil {
		tb.Fatal(err)
	}
	return before
}
