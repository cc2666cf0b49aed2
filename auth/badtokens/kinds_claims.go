package badtokens

import (
	"slices"
	"strings"

	"taskapi/auth"
	"taskapi/identity"
)

// nobody is the ID of nothing.
const nobody = "00000000-0000-4000-8000-000000000000"

// claimsKinds are claims of a wrong type, and good tokens of others: a verifier that knows keys and audiences alone
// accepts these.
func claimsKinds() []Kind {
	return slices.Concat(kinds(auth.BadClaims, []row{
		{"iss-array", "iss an array, which holds the right one if there is one (CVE-2025-30144)", claim("iss", `["%s"]`)},
		{"iss-number", "iss a number", claim("iss", "1")},
		{"sub-array", "sub an array that holds the right one", claim("sub", `["%s"]`)},
	}), strict(auth.BadClaims, []row{
		{"jti-number", "jti a number", claim("jti", "1")},
		{"task-number", "the task a number", claim("nomad_task", "1")},
		{"task-array", "the task an array that holds the right one", claim("nomad_task", `["%s"]`)},
		{"allocation-array", "the allocation an array that holds the right one", claim("nomad_allocation_id", `["%s"]`)},
		{"job-object", "the job an object", claim("nomad_job_id", "{}")},
		{"role-empty", "an empty role", claim("taskapi_role", `""`)},
		{"role-unknown", "a role that does not exist", claim("taskapi_role", `"admin"`)},
		{"role-upper-case", "the operator's role in another case", claim("taskapi_role", `"Operator"`)},
		{"role-array", "the operator's role in an array", claim("taskapi_role", `["operator"]`)},
		{"role-true", "the role true", claim("taskapi_role", "true")},
		{"role-operator-of-a-task", "the operator's role, and a task", claim("taskapi_role", `"operator"`)},
		{"iss-null", "iss null", claim("iss", "null")},
		{"sub-null", "sub null", claim("sub", "null")},
		{"jti-null", "jti null", claim("jti", "null")},
		{"namespace-null", "the namespace null", claim("nomad_namespace", "null")},
	}), strict(auth.UnknownAllocation, []row{
		{"other-alloc", "of another allocation", of(func(c *identity.Claims) { c.AllocationID = nobody })},
		{"allocation-missing", "of no allocation", of(func(c *identity.Claims) { c.AllocationID = "" })},
		{"allocation-prefix", "of the beginning of the allocation's ID", of(func(c *identity.Claims) {
			c.AllocationID = c.AllocationID[:len(c.AllocationID)/2]
		})},
	}), strict(auth.EarlierLife, []row{
		{"other-life", "of an earlier life of the allocation", of(func(c *identity.Claims) { c.Life = nobody })},
		{"life-missing", "of no life of the allocation", of(func(c *identity.Claims) { c.Life = "" })},
	}), strict(auth.WrongClaims, []row{
		{"other-namespace", "of another namespace", of(func(c *identity.Claims) { c.Namespace = another(c, 1) })},
		{"namespace-missing", "of no namespace", of(func(c *identity.Claims) { c.Namespace = "" })},
		{"other-job", "of another job", of(func(c *identity.Claims) { c.JobID = another(c, 2) })},
		{"job-missing", "of no job", of(func(c *identity.Claims) { c.JobID = "" })},
		{"other-group", "of another group of the job", of(func(c *identity.Claims) { another(c, 3) })},
		{"other-region", "of another region", of(func(c *identity.Claims) { another(c, 0) })},
		{"sub-of-another-task", "sub names another task than nomad_task", of(func(c *identity.Claims) { another(c, 4) })},
		{"sub-missing", "no sub", of(func(c *identity.Claims) { c.Subject = "" })},
		{"sub-cut", "a sub without the name of an identity", of(func(c *identity.Claims) { setSubject(c, 5, "") })},
		{"sub-longer", "a sub of seven parts", of(func(c *identity.Claims) { c.Subject += ":more" })},
	}), strict(auth.WrongSocket, []row{
		{"other-task", "of another task of the allocation", of(func(c *identity.Claims) { c.Task = another(c, 4) })},
		{"task-missing", "of no task", of(func(c *identity.Claims) { c.Task = setSubject(c, 4, "") })},
		{"operator", "of the operator, on a task's socket", operators},
	}), like(Kind{Reason: auth.WrongIssuer, Foreign: true}, []row{
		{"wrong-issuer", "of another issuer than the one whose key it is", of(func(c *identity.Claims) {
			c.Issuer = "https://another.example"
		})},
		{"iss-missing", "of no issuer", issuer(func(string) string { return "" })},
		{"iss-slash", "iss with a slash after it", issuer(func(iss string) string { return iss + "/" })},
		{"iss-cut", "iss without its last character", issuer(func(iss string) string { return iss[:len(iss)-1] })},
		{"iss-longer", "iss that begins with the right one (CVE-2024-53861)", issuer(func(iss string) string {
			return iss + ".evil.example"
		})},
	}), like(Kind{Reason: auth.WrongRole, Strict: true, Foreign: true}, []row{
		{"operator-by-another-issuer", "another issuer's key speaks for the operator", operators},
	}))
}

// setSubject replaces a part of sub (region, namespace, job, group, task, identity), and returns the new one.
func setSubject(c *identity.Claims, part int, value string) string {
	parts := strings.Split(c.Subject, ":")
	if part < len(parts) {
		parts[part] = value
		c.Subject = strings.Join(parts, ":")
	}
	return value
}

// another puts another name into a part of sub, and returns the new sub.
func another(c *identity.Claims, part int) string { return setSubject(c, part, "another") }

// issuer makes a token with another iss, if the good token has one.
func issuer(change func(iss string) string) maker {
	return func(b base) string {
		if b.Claims.Issuer == "" {
			return ""
		}
		b.Claims.Issuer = change(b.Claims.Issuer)
		return b.Token()
	}
}
