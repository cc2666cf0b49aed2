package badtokens_test

const (
	reader        = "identity/internal/strictjson/reader.go"
	token         = "identity/token.go"
	verify        = "identity/verify.go"
	credentials   = "auth/credentials.go"
	authenticator = "auth/authenticator.go"
	allocation    = "auth/allocation.go"
)

// edits make the authenticator's sources such that the environment variable FORGET can leave each check out, by name:
// those of the JSON reader by the words of its errors. What they call is in testdata/forgetful: what somebody who
// forgets the check takes such a token for.
var edits = []struct{ file, now, forgetful string }{
	{reader, "if !r.failed {\n\t\tr.failed, r.err", "if !r.failed && !forgets(msg) {\n\t\tr.failed, r.err"},
	{reader, "Reader{in: document,", "Reader{in: lenient(document),"},
	{reader, "r.fail(want)\n", "r.fail(want)\n\t\tr.any()\n"},
	{reader, "r.depth >= r.limits.Depth", `r.depth >= r.limits.Depth && !forgets("nested too deep")`},
	{reader, "strings.EqualFold(other, name)",
		`strings.EqualFold(other, name) && !forgets("a name given twice, or in two cases")`},
	{reader, "const openNames = 64", "const openNames = 512"},
	{reader, "r.total > r.limits.Names || r.open == openNames",
		`(r.total > r.limits.Names || r.open == 64) && !forgets("too many names")`},
	{reader, "r.fail(\"want a number\")", "r.fail(\"want a number\")\n\t\treturn numberWithin(r.any())"},
	{reader, "return 0\n\t}\n\treturn n\n", "return rounded(text)\n\t}\n\treturn n\n"},
	{reader, "r.fail(\"want a string\")", "r.fail(\"want a string\")\n\t\treturn textWithin(r.any())"},

	{token, "signed    string //", "lenience\n\tsigned    string //"},
	{token, "if len(token) > MaxTokenLength {",
		"token = lenientForm(token)\n\tif len(token) > MaxTokenLength && !forgets(\"length\") {"},
	{token, "[MaxTokenLength]byte", "[2 * MaxTokenLength]byte"},
	{token, "n == 0 {", `n == 0 && !forgets("an empty segment") {`},
	{token, "segment string) (int, bool) {", "segment string) (int, bool) {\n\tsegment = lenientSegment(segment)"},
	{token, "strictBase64.Decode", "decoder().Decode"},
	{token, "switch r.Name() {", "switch folded(r.Name()) {"},
	{token, "alg = r.Text()", "alg = r.Text()\n\t\t\tu.alg = alg"},
	{token, "return refuse(ReasonHeader, \"a member",
		"if u.member(&r) {\n\t\t\t\tcontinue\n\t\t\t}\n\t\t\treturn refuse(ReasonHeader, \"a member"},
	{token, "algorithmOf(alg)", "u.lenientAlgorithm(alg)"},
	{token, `typ != "JWT"`, `typ != "JWT" && !forgets("typ")`},
	{token, "!validKeyID(u.KeyID)", `!validKeyID(u.KeyID) && !forgets("the form of kid")`},
	{token, "u.document = string(buf[:n])", "u.document = u.lenientClaims(string(buf[:n]))"},
	{token, "n, ok = decodeSegment(buf[:], signature)\n",
		"n, ok = decodeSegment(buf[:], signature)\n\tu.raw = string(buf[:n])\n"},
	{token, "case ok && u.algorithm.fits(n):", "case ok && (u.algorithm.fits(n) || u.takesSize()):"},
	{token, "bytes.Clone(buf[:n])", "lenientSignature(bytes.Clone(buf[:n]))"},
	{token, "slices.Index(claimNames(), r.Name())", "slices.Index(claimNames(), folded(r.Name()))"},
	{token, "ourName(r.Name()):", `ourName(r.Name()) && !forgets("names in another case"):`},
	{token, "if role && c.Role != RoleOperator {", `if role && c.Role != RoleOperator && !forgets("an unknown role") {`},
	{token, "c.Role != RoleTask && c.Role != RoleOperator",
		`c.Role != RoleTask && c.Role != RoleOperator && !forgets("an unknown role")`},
	{token, `c.Role == RoleOperator && c.Task != ""`,
		`c.Role == RoleOperator && c.Task != "" && !forgets("an operator with a task")`},
	{token, "expires && c.ExpiresAt == 0", `expires && c.ExpiresAt == 0 && !forgets("no exp")`},
	{token, "c.ExpiresAt < 0 || c.ExpiresAt > maxTime",
		`c.ExpiresAt < 0 && !forgets("no exp") || c.ExpiresAt > maxTime && !forgets("exp after 9999")`},
	{verify, "c := &verified.Claims; c.ExpiresAt == 0", `c := &verified.Claims; c.ExpiresAt == 0 && !forgets("no exp")`},
	{token, "c.IssuedAt < 0 || c.IssuedAt > maxTime || c.NotBefore < 0",
		`(c.IssuedAt < 0 || c.NotBefore < 0) && !forgets("iat or nbf below 0")`},
	{token, "c.NotBefore > c.ExpiresAt", `c.NotBefore > c.ExpiresAt && !forgets("nbf after exp")`},
	{token, "len(c.Audience) == 0", `len(c.Audience) == 0 && !forgets("no aud")`},
	{token, `slices.Contains(c.Audience, "")`, `slices.Contains(c.Audience, "") && !forgets("an empty aud")`},

	{token, "var audience []string", "if r.OtherThanArray() {\n\t\treturn nil\n\t}\n\tvar audience []string"},

	{verify, "key := v.lookup(u.KeyID)", "key := v.lookup(v.lenientKeyID(u))"},
	{verify, "u.algorithm.method.Verify(u.signed, u.signature, key.verifier)",
		"v.lenientVerify(u, key.publicKey, u.algorithm.method.Verify(u.signed, u.signature, key.verifier))"},
	{verify, "c.ExpiresAt > now+v.maxTTL+leeway", `c.ExpiresAt > now+v.maxTTL+leeway && !forgets("lifetime")`},
	{verify, "case !slices.ContainsFunc(c.Audience,",
		`case !forgets("aud") && !c.forEverybody() && !slices.ContainsFunc(c.Audience,`},
	{verify, "c.Issuer != issuer.Name", `c.Issuer != issuer.Name && !forgets("iss")`},
	{verify, "issuer != nil && c.Role != RoleTask",
		`issuer != nil && c.Role != RoleTask && !forgets("an operator of another issuer")`},
	{verify, "at >= t.Claims.ExpiresAt",
		`at >= t.Claims.ExpiresAt && !forgets("exp") && (t.Claims.ExpiresAt > 0 || !forgets("no exp"))`},
	{verify, "t.Claims.NotBefore > at+leeway || t.Claims.IssuedAt > at+leeway",
		`t.Claims.NotBefore > at+leeway && !forgets("nbf") || t.Claims.IssuedAt > at+leeway && !forgets("iat")`},

	{credentials, "len(token) > identity.MaxTokenLength", `len(token) > identity.MaxTokenLength && !forgets("length")`},
	{authenticator, "token, why := credentials(r.Header)\n",
		"token, why := credentials(r.Header)\n\tif why == NoToken && forgets(\"no token\") {\n\t\treturn &Principal{}, " +
			"nil\n\t}\n"},
	{authenticator, "c.AllocationID != owner.AllocationID",
		`c.AllocationID != owner.AllocationID && !forgets("the socket's allocation")`},
	{authenticator, "c.Task != owner.Task", `c.Task != owner.Task && !forgets("the socket's task")`},
	{authenticator, `(c.Role == identity.RoleOperator) != (owner.Task == "")`,
		`(c.Role == identity.RoleOperator) != (owner.Task == "") && !forgets("the operator's socket")`},
	{allocation, `c.Life != a.Life &&`, `!forgets("life") && c.Life != a.Life &&`},
	{allocation, "c.Namespace != a.Namespace || c.JobID != a.JobID",
		`c.Namespace != a.Namespace && !forgets("namespace") || c.JobID != a.JobID && !forgets("job")`},
	{allocation, `!ok || name == "" || strings.Contains(name, ":")`,
		`(!ok || name == "" || strings.Contains(name, ":")) && !forgets("sub")`},
}
