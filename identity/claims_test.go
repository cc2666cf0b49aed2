package identity_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"taskapi/examples/doctest"
	"taskapi/identity"
	"taskapi/internal/must"
)

// claimRows are the claims of a workload identity of Nomad 2.0.6, in the order of Claims, and of ours. here says what a
// claim is. A claim that no token of ours has is absent.
var claimRows = []struct {
	name   string
	nomad  bool
	absent bool
	here   string
}{
	{"jti", true, false, "unique to the token"},
	{"iss", true, false, "the setting `identity.issuer`; without it, none"},
	{"sub", true, false, "`REGION:NAMESPACE:JOB:GROUP:TASK:IDENTITY`"},
	{"aud", true, false, "the identity's `aud`, or the setting `identity.audience`: a text if there is one, else a list"},
	{"iat", true, false, "when it was issued"},
	{"nbf", true, false, "the same"},
	{"exp", true, false, "always; in Nomad, only of an identity with a `ttl`"},
	{"nomad_namespace", true, false, "the job's namespace"},
	{"nomad_job_id", true, false, "the job's ID, and for a child that of its parent"},
	{"nomad_allocation_id", true, false, "the allocation's ID"},
	{"nomad_task", true, false, "the task; none in the operator's token"},
	{"nomad_service", true, true, "no token is a service's; the token of Consul that registers services is the agent's"},
	{"vault_role", true, false, "the vault block's `role`, in identities whose name begins with `vault_`"},
	{"vault_namespace", true, false, "the vault block's `namespace`, in the same"},
	{"consul_namespace", true, false, "the `namespace` of the task's or else the group's consul block, in identities " +
		"whose name begins with `consul`"},
	{"extra_claims", true, false, "an object of the [extra claims](#extra-claims); left out when there are none"},
	{"taskapi_role", false, false, "`operator`, in the operator's token alone"},
	{"taskapi_allocation_life", false, false, "the allocation's present life"},
}

// TestClaimsOfNomad holds the claims to Nomad's, and docs/security.md to both.
func TestClaimsOfNomad(t *testing.T) {
	var document struct {
		Claims []string `json:"claims_supported"`
	}
	must.OK(t, json.Unmarshal(identity.OpenIDConfiguration("https://a.example", ""), &document))
	var want []string
	table := strings.Builder{}
	table.WriteString("| claim | in Nomad | here |\n|---|---|---|\n")
	for _, r := range claimRows {
		nomad, here := "yes", r.here
		if !r.nomad {
			nomad = "no"
		}
		if r.absent {
			here = "none: " + here
		} else {
			want = append(want, r.name)
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", r.name, nomad, here)
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(document.Claims)); !slices.Equal(got, want) {
		t.Errorf("claims of tokens: %v, want %v", got, want)
	}
	doctest.Table(t, "../docs/security.md", "identity", table.String())
}
