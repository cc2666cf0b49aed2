package identity

import (
	"compress/flate"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"taskapi/identity/internal/strictjson"
)

// lenience is what the lenient reader keeps of a token.
type lenience struct {
	alg, raw string
	zip      bool
	key      any // that the token brings
}

// lenientForm returns a token in the compact form.
func lenientForm(token string) string {
	if forgets("blanks around it") {
		token = strings.TrimSpace(token)
	}
	if forgets("the scheme within it") {
		token = strings.TrimPrefix(token, "Bearer ")
	}
	if forgets("the compact form") {
		var jws struct{ Protected, Payload, Signature string }
		if json.Unmarshal([]byte(token), &jws) == nil {
			token = jws.Protected + "." + jws.Payload + "." + jws.Signature
		}
	}
	if forgets("three segments") {
		token = strings.Join(append(strings.Split(token, "."), "", "")[:3], ".")
	}
	return token
}

func lenientSegment(segment string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	if forgets("line breaks in base64") {
		segment = strings.NewReplacer("\n", "", "\r", "").Replace(segment)
	}
	if forgets("padding of base64") {
		segment = strings.TrimRight(segment, "=")
	}
	if forgets("the alphabet of base64url") {
		segment = strings.NewReplacer("+", "-", "/", "_").Replace(segment)
	}
	if forgets("other bytes in base64") {
		var known []byte
		for _, c := range []byte(segment) {
			if c == '=' || c == '\n' || c == '\r' || c == '+' || c == '/' || strings.IndexByte(alphabet, c) >= 0 {
				known = append(known, c)
			}
		}
		segment = string(known)
	}
	if forgets("a lone character of base64") && len(segment)%4 == 1 {
		segment = segment[:len(segment)-1]
	}
	return segment
}

func decoder() *base64.Encoding {
	if forgets("trailing bits of base64") {
		return base64.RawURLEncoding
	}
	return strictBase64
}

// folded returns the name of a member as a reader takes it that knows no case.
func folded(name string) string {
	if forgets("names differ by case") {
		for _, ours := range append([]string{"alg", "kid", "typ"}, claimNames()...) {
			if strings.EqualFold(ours, name) {
				return ours
			}
		}
	}
	return name
}

// member reads a member of the header that should not be there, and reports whether it may be.
func (u *Unverified) member(r *strictjson.Reader) bool {
	seed := sha256.Sum256([]byte("a key that nobody trusts"))
	switch name := r.Name(); {
	case name == "jwk" && forgets("jwk"):
		u.key = embeddedKey(r)
	case name == "jku" && forgets("jku"), name == "x5u" && forgets("x5u"):
		u.key = ed25519.NewKeyFromSeed(seed[:]).Public() // what the address would answer
		r.Skip()
	case name == "x5c" && forgets("x5c"):
		for r.Array(); r.Next(); {
			der, _ := base64.StdEncoding.DecodeString(r.Text())
			if certificate, err := x509.ParseCertificate(der); err == nil {
				u.key = certificate.PublicKey
			}
		}
	case name == "zip" && forgets("zip"):
		u.zip = r.Text() == "DEF"
	case forgets("members of the header"):
		r.Skip()
	default:
		return false
	}
	return true
}

func embeddedKey(r *strictjson.Reader) any {
	m := map[string]string{}
	for r.Object(); r.Next(); {
		m[r.Name()] = r.Text()
	}
	decoded := func(name string) []byte {
		b, _ := base64.RawURLEncoding.DecodeString(m[name])
		return b
	}
	number := func(name string) *big.Int { return new(big.Int).SetBytes(decoded(name)) }
	switch m["kty"] {
	case "OKP":
		return ed25519.PublicKey(decoded("x"))
	case "EC":
		return &ecdsa.PublicKey{Curve: elliptic.P256(), X: number("x"), Y: number("y")}
	case "RSA":
		return &rsa.PublicKey{N: number("n"), E: int(number("e").Int64())}
	}
	return decoded("k")
}

// secrets are what a public key is when it is taken for the secret of an HMAC.
var secrets = map[string]func(ed25519.PublicKey) []byte{
	"HMAC with the public key": func(k ed25519.PublicKey) []byte { return k },
	"HMAC with the JWK's x":    func(k ed25519.PublicKey) []byte { return []byte(base64.RawURLEncoding.EncodeToString(k)) },
	"HMAC with the SSH key": func(k ed25519.PublicKey) []byte {
		blob := append([]byte("\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"), k...)
		return []byte("ssh-ed25519 " + base64.StdEncoding.EncodeToString(blob))
	},
	"HMAC with the PEM": func(k ed25519.PublicKey) []byte {
		der, _ := x509.MarshalPKIXPublicKey(k)
		return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	},
	"HMAC with nothing": func(ed25519.PublicKey) []byte { return nil },
}

func (u *Unverified) symmetric() bool {
	for name := range secrets {
		if forgets(name) && strings.HasPrefix(u.alg, "HS") {
			return true
		}
	}
	return false
}

func (u *Unverified) unsigned() bool {
	return u.raw == "" && (forgets("no signature") || strings.EqualFold(u.alg, "none") && forgets("alg none"))
}

func (u *Unverified) takesAlgorithm() bool {
	return forgets("alg") || u.symmetric() || u.unsigned() && strings.EqualFold(u.alg, "none") || u.key != nil
}

// lenientAlgorithm returns the algorithm of the key for every alg that is overlooked.
func (u *Unverified) lenientAlgorithm(alg string) *algorithm {
	if u.takesAlgorithm() {
		return eddsa
	}
	return algorithmOf(alg)
}

// lenientSignature returns a signature with as many bytes as Ed25519 has. One that was cut off does not end with 0: in
// one of 16 signatures zero is what was cut off.
func lenientSignature(signature []byte) []byte {
	padded := [64]byte{63: 0xff}
	copy(padded[:], signature)
	return padded[:]
}

func (u *Unverified) takesSize() bool {
	return forgets("the size of the signature") || u.symmetric() || u.unsigned() || u.key != nil
}

// lenientVerify is asked when the signature is not that of the key.
func (v *Verifier) lenientVerify(u *Unverified, key *publicKey, err error) error {
	if err == nil || u.unsigned() || forgets("signature") {
		return nil
	}
	if method := jwt.GetSigningMethod(u.alg); method != nil && u.key != nil {
		return method.Verify(u.signed, []byte(u.raw), u.key)
	}
	for name, secret := range secrets {
		if u.symmetric() && forgets(name) {
			return jwt.GetSigningMethod(u.alg).Verify(u.signed, []byte(u.raw), secret(key.bytes[:]))
		}
	}
	if forgets("the key of the kid") {
		for _, id := range v.local.Keys().IDs() {
			if jwt.SigningMethodEdDSA.Verify(u.signed, u.signature[:], v.local.Keys().lookup(id).verifier) == nil {
				return nil
			}
		}
	}
	if forgets("S below the order") {
		s := slices.Clone(u.signature[32:])
		slices.Reverse(s)
		order, _ := new(big.Int).SetString("1000000000000000000000000000000014def9dea2f79cd65812631a5cf5d3ed", 16)
		s = new(big.Int).Mod(new(big.Int).SetBytes(s), order).FillBytes(make([]byte, 32))
		slices.Reverse(s)
		return jwt.SigningMethodEdDSA.Verify(u.signed, append(u.signature[:32:32], s...), key.verifier)
	}
	return err
}

// lenientClaims returns the claims that are compressed, or those of a token within the token.
func (u *Unverified) lenientClaims(claims string) string {
	if u.zip {
		text, _ := io.ReadAll(flate.NewReader(strings.NewReader(claims)))
		claims = string(text)
	}
	if parts := strings.Split(strings.Trim(claims, `"`), "."); len(parts) == 3 && claims[0] != '{' && forgets("a token within") {
		text, _ := base64.RawURLEncoding.DecodeString(parts[1])
		claims = string(text)
	}
	return claims
}

// lenientKeyID returns the ID of the key that a token is verified with: any, when there is none of its kid.
func (v *Verifier) lenientKeyID(u *Unverified) string {
	if v.lookup(u.KeyID).publicKey == nil && forgets("an unknown kid") {
		u.KeyID = v.local.Keys().IDs()[0]
	}
	return u.KeyID
}

// forEverybody reports whether a token names no audience.
func (c *Claims) forEverybody() bool { return strings.Join(c.Audience, "") == "" && forgets("no aud") }
