package badtokens

import (
	"fmt"
	"slices"
	"strings"

	"taskapi/auth"
	"taskapi/identity"
)

// expand puts the good value, a text of JSON, into a text with %d, or with %s for what is within its quotes.
func expand(text, good string) string {
	return strings.NewReplacer("%d", good, "%s", strings.Trim(good, `"`)).Replace(text)
}

func audiences() []Kind {
	var kinds []Kind
	for _, a := range []struct {
		name, wrong, aud string
		reason           auth.Reason
	}{
		{"aud-null", "aud null", "null", auth.BadClaims},
		{"aud-number", "aud a number", "1", auth.BadClaims},
		{"aud-true", "aud true", "true", auth.BadClaims},
		{"aud-object", "aud an object with the right name in it", `{"%s":1}`, auth.BadClaims},
		{"aud-empty", "an empty aud", `""`, auth.BadClaims},
		{"aud-empty-array", "aud an empty array (CVE-2020-26160)", "[]", auth.BadClaims},
		{"aud-array-of-empty", "aud an array of an empty name", `[""]`, auth.BadClaims},
		{"aud-array-of-numbers", "aud an array of numbers", "[1]", auth.BadClaims},
		{"aud-mixed-number", "the right aud beside a number", `["%s",1]`, auth.BadClaims},
		{"aud-mixed-null", "the right aud beside null", `["%s",null]`, auth.BadClaims},
		{"aud-nested", "the right aud in an array in an array", `[["%s"]]`, auth.BadClaims},
		{"wrong-audience", "for somebody else", `"another.example"`, auth.WrongAudience},
		{"wrong-audiences", "for two others", `["a.example","b.example"]`, auth.WrongAudience},
		{"aud-prefix", "the beginning of the right aud", `"%p"`, auth.WrongAudience},
		{"aud-longer", "the right aud with a suffix", `"%s.evil.example"`, auth.WrongAudience},
		{"aud-upper-case", "the right aud in capital letters", `"%u"`, auth.WrongAudience},
		{"aud-blank", "the right aud and a blank", `"%s "`, auth.WrongAudience},
		{"aud-joined", "the right aud and another, joined by a comma", `"%s,another.example"`, auth.WrongAudience},
		{"aud-wildcard", "aud *", `"*"`, auth.WrongAudience},
	} {
		kinds = append(kinds, Kind{Name: a.name, Wrong: a.wrong, Reason: a.reason, Strict: a.name == "aud-mixed-null", make: func(b base) (string, error) {
			one := quote(b.Claims.Audience[0])
			inner := one[1 : len(one)-1]
			upper := strings.ToUpper(inner)
			if strings.Contains(a.aud, "%u") && upper == inner {
				return "", fmt.Errorf("%w: its audience has no small letter", ErrNotApplicable)
			}
			aud := strings.NewReplacer("%s", inner, "%u", upper, "%p", inner[:max(1, len(inner)-3)]).Replace(a.aud)
			return b.withClaims(b.claims().with("aud", aud)), nil
		}})
	}
	return append(kinds,
		kind("aud-missing", "no aud", auth.BadClaims, func(b base) string { return b.withClaims(b.claims().without("aud")) }),
		Kind{Name: "aud-mixed-empty", Wrong: "the right aud beside an empty one", Reason: auth.BadClaims, Strict: true, make: func(b base) (string, error) {
			return b.withClaims(b.claims().with("aud", quoteAll([]string{b.Claims.Audience[0], ""}))), nil
		}})
}

// others are tokens of somebody else, and claims that are not what they should be.
func others() []Kind { return slices.Concat(wrongTypes(), strangers(), foreign()) }

func wrongTypes() []Kind {
	var kinds []Kind
	for _, c := range []struct{ name, wrong, claim, value string }{
		{"iss-array", "iss an array, which holds the right one if there is one (CVE-2025-30144)", "iss", `["%s"]`},
		{"iss-number", "iss a number", "iss", "1"},
		{"sub-array", "sub an array that holds the right one", "sub", `["%s"]`},
		{"jti-number", "jti a number", "jti", "1"},
		{"task-number", "the task a number", "nomad_task", "1"},
		{"task-array", "the task an array that holds the right one", "nomad_task", `["%s"]`},
		{"allocation-array", "the allocation an array that holds the right one", "nomad_allocation_id", `["%s"]`},
		{"job-object", "the job an object", "nomad_job_id", "{}"},
		{"role-empty", "an empty role", "taskapi_role", `""`},
		{"role-unknown", "a role that does not exist", "taskapi_role", `"admin"`},
		{"role-upper-case", "the operator's role in another case", "taskapi_role", `"Operator"`},
		{"role-array", "the operator's role in an array", "taskapi_role", `["operator"]`},
		{"role-true", "the role true", "taskapi_role", "true"},
		{"role-operator-of-a-task", "the operator's role, and a task", "taskapi_role", `"operator"`},
	} {
		k := kind(c.name, c.wrong, auth.BadClaims, func(b base) string {
			d := b.claims()
			good := d.value(c.claim)
			if good == "null" { // only iss may be missing
				good = `"https://issuer.example"`
			}
			return b.withClaims(d.with(c.claim, expand(c.value, good)))
		})
		k.Strict = c.claim == "jti" || strings.HasPrefix(c.claim, "nomad_") || strings.HasPrefix(c.claim, "taskapi_")
		kinds = append(kinds, k)
	}
	for _, c := range []struct{ name, wrong, claim string }{
		{"iss-null", "iss null", "iss"}, {"sub-null", "sub null", "sub"}, {"jti-null", "jti null", "jti"}, {"namespace-null", "the namespace null", "nomad_namespace"},
	} {
		kinds = append(kinds, kind(c.name, c.wrong, auth.BadClaims, func(b base) string { return b.withClaims(b.claims().with(c.claim, "null")) }).strict())
	}
	return kinds
}

// strangers are good tokens of others: a verifier that knows keys and audiences alone accepts them.
func strangers() []Kind {
	another := func(name, wrong string, reason auth.Reason, change func(c *identity.Claims)) Kind {
		return kind(name, wrong, reason, func(b base) string {
			c := b.Claims
			change(&c)
			b.Claims = c
			return b.Token()
		}).strict()
	}
	// subject replaces a part of sub: region, namespace, job, group, task, identity.
	subject := func(c *identity.Claims, part int, value string) {
		parts := strings.Split(c.Subject, ":")
		if part < len(parts) {
			parts[part] = value
			c.Subject = strings.Join(parts, ":")
		}
	}
	const nobody = "00000000-0000-4000-8000-000000000000"
	return []Kind{
		another("other-alloc", "of another allocation", auth.UnknownAllocation, func(c *identity.Claims) { c.AllocationID = nobody }),
		another("allocation-missing", "of no allocation", auth.UnknownAllocation, func(c *identity.Claims) { c.AllocationID = "" }),
		another("allocation-prefix", "of the beginning of the allocation's ID", auth.UnknownAllocation, func(c *identity.Claims) {
			c.AllocationID = c.AllocationID[:len(c.AllocationID)/2]
		}),
		another("other-life", "of an earlier life of the allocation", auth.EarlierLife, func(c *identity.Claims) { c.Life = nobody }),
		another("life-missing", "of no life of the allocation", auth.EarlierLife, func(c *identity.Claims) { c.Life = "" }),
		another("other-namespace", "of another namespace", auth.WrongClaims, func(c *identity.Claims) { c.Namespace = "another"; subject(c, 1, "another") }),
		another("namespace-missing", "of no namespace", auth.WrongClaims, func(c *identity.Claims) { c.Namespace = "" }),
		another("other-job", "of another job", auth.WrongClaims, func(c *identity.Claims) { c.JobID = "another"; subject(c, 2, "another") }),
		another("job-missing", "of no job", auth.WrongClaims, func(c *identity.Claims) { c.JobID = "" }),
		another("other-group", "of another group of the job", auth.WrongClaims, func(c *identity.Claims) { subject(c, 3, "another") }),
		another("other-region", "of another region", auth.WrongClaims, func(c *identity.Claims) { subject(c, 0, "another") }),
		another("sub-of-another-task", "sub names another task than nomad_task", auth.WrongClaims, func(c *identity.Claims) { subject(c, 4, "another") }),
		another("sub-missing", "no sub", auth.WrongClaims, func(c *identity.Claims) { c.Subject = "" }),
		another("sub-cut", "a sub without the name of an identity", auth.WrongClaims, func(c *identity.Claims) { subject(c, 5, "") }),
		another("sub-longer", "a sub of seven parts", auth.WrongClaims, func(c *identity.Claims) { c.Subject += ":more" }),
		another("other-task", "of another task of the allocation", auth.WrongSocket, func(c *identity.Claims) { c.Task = "another"; subject(c, 4, "another") }),
		another("task-missing", "of no task", auth.WrongSocket, func(c *identity.Claims) { c.Task = ""; subject(c, 4, "") }),
		kind("operator", "of the operator, on a task's socket", auth.WrongSocket, func(b base) string { return b.withClaims(b.operators()) }).strict(),
	}
}

// foreign are tokens of another issuer that the verifier trusts.
func foreign() []Kind {
	issuer := func(name, wrong string, change func(iss string) string) Kind {
		return Kind{Name: name, Wrong: wrong, Reason: auth.WrongIssuer, Foreign: true, make: func(b base) (string, error) {
			iss := change(b.Claims.Issuer)
			if iss == b.Claims.Issuer {
				return "", fmt.Errorf("%w: it has no iss", ErrNotApplicable)
			}
			b.Claims.Issuer = iss
			return b.Token(), nil
		}}
	}
	role := kind("operator-by-another-issuer", "another issuer's key speaks for the operator", auth.WrongRole, func(b base) string {
		return b.withClaims(b.operators())
	}).strict()
	role.Foreign = true
	return []Kind{
		issuer("wrong-issuer", "of another issuer than the one whose key it is", func(string) string { return "https://another.example" }),
		issuer("iss-missing", "of no issuer", func(string) string { return "" }),
		issuer("iss-slash", "iss with a slash after it", func(iss string) string {
			if iss == "" {
				return ""
			}
			return iss + "/"
		}),
		issuer("iss-cut", "iss without its last character", func(iss string) string { return iss[:max(0, len(iss)-1)] }),
		issuer("iss-longer", "iss that begins with the right one (CVE-2024-53861)", func(iss string) string {
			if iss == "" {
				return ""
			}
			return iss + ".evil.example"
		}),
		role,
	}
}
