package identity

import (
	"bytes"
	"encoding/base64"
	"reflect"
	"slices"
	"strings"

	"taskapi/identity/internal/strictjson"
)

const (
	// MaxTokenLength is the length in bytes of the longest token that is read. A task's identity has about 560, one of
	// Nomad's with RS256 about 800.
	MaxTokenLength = 4096
	// maxKeyID is the length of the longest kid. A UUID has 36.
	maxKeyID = 64
	// maxTime is 9999-12-31T23:59:59Z, the last second that RFC 3339 can write.
	maxTime = 253402300799
)

// tokenLimits bound the JSON of a header and of claims. 128 names are ten times Nomad's, and compared in a few
// microseconds.
var tokenLimits = strictjson.Limits{Depth: 4, Names: 128}

// Unverified is a token whose form is right. Nothing in it can be believed before its signature has been verified.
type Unverified struct {
	Claims Claims
	KeyID  string

	algorithm *algorithm
	signed    string // header and claims as they were signed
	document  string // the claims as JSON
	signature []byte
}

// Check reads a token in the compact form of RFC 7515. Its rules for form, header and claims leave only one way to read
// the token. It needs no keys and no clock. The error is an *Error with a structural reason.
//
// The header has the alg of a key set's keys (see ParseJWKS), a kid of 1 to 64 letters, digits, '.', '_' and '-',
// perhaps typ "JWT", and nothing else.
// The claim aud is required: a string or an array of strings. Times are whole seconds with 0 < exp and nbf <= exp. A
// missing exp is for Verify to judge. Other claims than ours are allowed, unless their name is one of ours in another
// case.
func Check(token string) (*Unverified, error) {
	u := new(Unverified)
	if err := u.read(token); err != nil {
		return nil, err
	}
	return u, nil
}

func (u *Unverified) read(token string) *Error {
	if len(token) > MaxTokenLength {
		return refuse(ReasonTooLong, "longer than 4096 bytes")
	}
	if strings.Count(token, ".") != 2 {
		return refuse(ReasonMalformed, "want three segments")
	}
	header, rest, _ := strings.Cut(token, ".")
	claims, signature, _ := strings.Cut(rest, ".")
	u.signed = token[:len(header)+1+len(claims)]

	var buf [MaxTokenLength]byte
	n, ok := decodeSegment(buf[:], header)
	if !ok || n == 0 {
		return refuse(ReasonMalformed, "the header is not canonical base64url")
	}
	if err := u.readHeader(string(buf[:n])); err != nil {
		return err
	}
	if n, ok = decodeSegment(buf[:], claims); !ok || n == 0 {
		return refuse(ReasonMalformed, "the claims are not canonical base64url")
	}
	u.document = string(buf[:n])
	if err := u.readClaims(); err != nil {
		return err
	}
	n, ok = decodeSegment(buf[:], signature)
	switch {
	case ok && u.algorithm.fits(n):
	case ok && slices.ContainsFunc(algorithms, func(a *algorithm) bool { return a.fits(n) }):
		return refuse(ReasonAlgorithm, "the signature is as long as that of another alg")
	default:
		return refuse(ReasonMalformed, "the signature is not as many bytes as alg wants, in canonical base64url")
	}
	u.signature = bytes.Clone(buf[:n])
	return nil
}

var strictBase64 = base64.RawURLEncoding.Strict()

// decodeSegment decodes unpadded base64url into dst, which is long enough, and reports whether the segment was
// canonical. The decoder refuses trailing bits, because it is strict, but skips line breaks, which are therefore looked
// for.
func decodeSegment(dst []byte, segment string) (int, bool) {
	if strings.IndexByte(segment, '\n') >= 0 || strings.IndexByte(segment, '\r') >= 0 {
		return 0, false
	}
	// Encoding.Decode wants bytes. The copy stays on the stack.
	var src [MaxTokenLength]byte
	n, err := strictBase64.Decode(dst, src[:copy(src[:], segment)])
	return n, err == nil
}

// readHeader accepts the members alg, kid and typ alone, so that no header can embed a key, name an address, or ask to
// be understood.
func (u *Unverified) readHeader(document string) *Error {
	var r strictjson.Reader
	r.Reset(document, tokenLimits)
	alg, typ := "", "JWT"
	for r.Object(); r.Next(); {
		switch r.Name() {
		case "alg":
			alg = r.Text()
		case "kid":
			u.KeyID = r.Text()
		case "typ":
			typ = r.Text()
		default:
			return refuse(ReasonHeader, "a member other than alg, kid and typ")
		}
	}
	if err := r.End(); err != nil {
		return refuse(ReasonHeader, err.Msg)
	}
	u.algorithm = algorithmOf(alg)
	switch {
	case u.algorithm == nil:
		return refuse(ReasonAlgorithm, "alg is none of those that keys are for")
	case typ != "JWT":
		return refuse(ReasonHeader, "typ is not JWT")
	case !validKeyID(u.KeyID):
		return refuse(ReasonKeyID, "kid is not 1 to 64 letters, digits, '.', '_' and '-'")
	}
	return nil
}

// validKeyID reports whether id matches ^[A-Za-z0-9._-]{1,64}$.
func validKeyID(id string) bool {
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return 1 <= len(id) && len(id) <= maxKeyID
}

func (u *Unverified) readClaims() *Error {
	var r strictjson.Reader
	r.Reset(u.document, tokenLimits)
	c := &u.Claims
	fields, role, expires := reflect.ValueOf(c).Elem(), false, false
	for r.Object(); r.Next(); {
		i := slices.Index(claimNames(), r.Name())
		role = role || r.Name() == "taskapi_role"
		expires = expires || r.Name() == "exp"
		switch {
		case i < 0 && ourName(r.Name()):
			return refuse(ReasonClaims, "the name of a claim in another case")
		case i < 0:
			r.Skip()
		case fields.Field(i).Kind() == reflect.Int64:
			fields.Field(i).SetInt(r.Int())
		case fields.Field(i).Kind() == reflect.Slice:
			c.Audience = readAudience(&r)
		case fields.Field(i).Kind() == reflect.Map:
			c.ExtraClaims = readTexts(&r)
		default:
			fields.Field(i).SetString(r.Text())
		}
	}
	if err := r.End(); err != nil {
		return refuse(ReasonClaims, err.Msg)
	}
	if role && c.Role != RoleOperator {
		return refuse(ReasonClaims, "taskapi_role is not operator")
	}
	if expires && c.ExpiresAt == 0 {
		return refuse(ReasonClaims, "exp is 0")
	}
	return c.check()
}

func readAudience(r *strictjson.Reader) []string {
	if r.IsString() {
		return []string{r.Text()}
	}
	var audience []string
	for r.Array(); r.Next(); {
		audience = append(audience, r.Text())
	}
	return audience
}

// readTexts reads an object of strings. It returns nil for an empty one.
func readTexts(r *strictjson.Reader) map[string]string {
	var texts map[string]string
	for r.Object(); r.Next(); {
		if texts == nil {
			texts = map[string]string{}
		}
		texts[r.Name()] = r.Text()
	}
	return texts
}

// ourName reports whether name differs from that of a claim of ours at most by its case.
func ourName(name string) bool {
	return slices.ContainsFunc(claimNames(), func(our string) bool { return strings.EqualFold(our, name) })
}

// check checks the claims as far as that needs no clock.
func (c *Claims) check() *Error {
	switch {
	case c.ExpiresAt < 0 || c.ExpiresAt > maxTime:
		return refuse(ReasonClaims, "exp is not a time between 1970 and 9999")
	case c.IssuedAt < 0 || c.IssuedAt > maxTime || c.NotBefore < 0:
		return refuse(ReasonClaims, "iat or nbf is not a time between 1970 and 9999")
	case c.ExpiresAt > 0 && c.NotBefore > c.ExpiresAt:
		return refuse(ReasonClaims, "nbf is after exp")
	case len(c.Audience) == 0:
		return refuse(ReasonClaims, "aud is missing or names nobody")
	case c.Role != RoleTask && c.Role != RoleOperator:
		return refuse(ReasonClaims, "a role that does not exist")
	case c.Role == RoleOperator && c.Task != "":
		return refuse(ReasonClaims, "an operator's token names a task")
	case slices.Contains(c.Audience, ""):
		return refuse(ReasonClaims, "an empty audience")
	}
	return nil
}
