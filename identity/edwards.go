package identity

import (
	"bytes"
	"errors"

	"filippo.io/edwards25519"
)

var (
	errNotCanonical = errors.New("is not the canonical encoding of a point")
	errNotOnCurve   = errors.New("is not a point of the curve Ed25519")
	errSmallOrder   = errors.New("is a point of small order, for which anybody can make signatures")
)

// checkPoint refuses an Ed25519 public key that is not the encoding of a point (RFC 8032 section 5.1.3), or whose point
// has an order of 1, 2, 4 or 8. For such a point, signatures that no key has made pass the check, and crypto/ed25519
// does not refuse it.
func checkPoint(key []byte) error {
	point, err := new(edwards25519.Point).SetBytes(key)
	switch {
	case err != nil:
		return errNotOnCurve
	case !bytes.Equal(point.Bytes(), key): // SetBytes also takes encodings that are not canonical
		return errNotCanonical
	case new(edwards25519.Point).MultByCofactor(point).Equal(edwards25519.NewIdentityPoint()) == 1:
		return errSmallOrder
	}
	return nil
}
