package identity

import (
	"errors"
	"math/big"
	"slices"
)

// The curve of RFC 8032 section 5.1: -x^2 + y^2 = 1 + d x^2 y^2 over the integers modulo p = 2^255 - 19.
var (
	fieldP = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	curveD = mod(new(big.Int).Mul(big.NewInt(-121665), new(big.Int).ModInverse(big.NewInt(121666), fieldP)))
	one    = big.NewInt(1)
)

var (
	errNotCanonical = errors.New("is not the canonical encoding of a point")
	errNotOnCurve   = errors.New("is not a point of the curve Ed25519")
	errSmallOrder   = errors.New("is a point of small order, for which anybody can make signatures")
)

// checkPoint refuses an Ed25519 public key that is not the encoding of a point (RFC 8032 section 5.1.3), or whose point has an
// order of 1, 2, 4 or 8: the equation that a signature is checked by then holds for signatures that nobody's key made.
// crypto/ed25519 does not tell, and its arithmetic can't be had: this is a slow one, for when a key set is loaded.
func checkPoint(key []byte) error {
	encoded := slices.Clone(key)
	sign := encoded[31] >> 7
	encoded[31] &= 0x7f
	slices.Reverse(encoded) // big.Int wants the most significant byte first
	y := new(big.Int).SetBytes(encoded)
	if y.Cmp(fieldP) >= 0 {
		return errNotCanonical
	}
	// x^2 = (y^2 - 1) / (d y^2 + 1). The divisor is never 0, since -1/d is not a square.
	yy := product(y, y)
	xx := quotient(new(big.Int).Sub(yy, one), new(big.Int).Add(product(curveD, yy), one))
	x := new(big.Int).ModSqrt(xx, fieldP)
	if x == nil {
		return errNotOnCurve
	}
	if x.Sign() == 0 && sign == 1 {
		return errNotCanonical
	}
	// Eight times a point of small order is the neutral element (0, 1). The sign of x does not matter to that.
	for range 3 {
		x, y = double(x, y)
	}
	if x.Sign() == 0 && y.Cmp(one) == 0 {
		return errSmallOrder
	}
	return nil
}

// double adds a point to itself by the addition law of RFC 8032 section 5.1.4 in affine coordinates, where -x^2 is a x^2.
func double(x, y *big.Int) (*big.Int, *big.Int) {
	xx, yy, xy := product(x, x), product(y, y), product(x, y)
	dxxyy := product(curveD, product(xx, yy))
	return quotient(new(big.Int).Lsh(xy, 1), new(big.Int).Add(one, dxxyy)),
		quotient(new(big.Int).Add(yy, xx), new(big.Int).Sub(one, dxxyy))
}

func mod(a *big.Int) *big.Int { return a.Mod(a, fieldP) }

func product(a, b *big.Int) *big.Int { return mod(new(big.Int).Mul(a, b)) }

func quotient(a, b *big.Int) *big.Int {
	return product(a, new(big.Int).ModInverse(mod(b), fieldP))
}
