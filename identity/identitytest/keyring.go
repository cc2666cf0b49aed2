// Package identitytest makes key rings and good tokens for tests of this module. Package badtokens makes bad tokens.
package identitytest

import (
	"path/filepath"
	"testing"

	"taskapi/identity"
	"taskapi/internal/must"
)

// Keyring returns a new key ring.
func Keyring(tb testing.TB) *identity.Keyring {
	tb.Helper()
	ring := must.Get(identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(tb.TempDir(), "keyring")}))(tb)
	return ring
}

// Sign returns a token that the ring has signed.
func Sign(tb testing.TB, ring *identity.Keyring, c identity.Claims) string {
	tb.Helper()
	token := must.Get(ring.Sign(c))(tb)
	return token
}

// Rotate makes another key of the ring active, and returns the ID of the one before.
func Rotate(tb testing.TB, ring *identity.Keyring) string {
	tb.Helper()
	before := ring.Active().ID
	must.Get(ring.Rotate())(tb)
	return before
}
