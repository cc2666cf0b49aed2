package jobspec_test

import (
	"slices"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec"
)

// TestRowsAreAboutTheSpecification: no row is about a block or an attribute that job files don't have, and each of those has a row.
func TestRowsAreAboutTheSpecification(t *testing.T) {
	rows := jobspec.Rows()
	last := slices.IndexFunc(rows, func(r jobspec.Row) bool { return r.Block == "job" && r.Attribute == "consul_namespace" })
	var inJSON []string
	for _, r := range rows[last:] {
		inJSON = append(inJSON, r.Block+" "+r.Attribute)
	}
	if want := []string{"job consul_namespace", "job consul_namespace", "job payload", "job stop", "job vault_namespace"}; !slices.Equal(inJSON, want) {
		t.Errorf("%v are in no job file, want %v", inJSON, want)
	}
	for want, severity := range map[string]jobspec.Severity{
		"job periodic": jobspec.Refused, "group count": jobspec.Note, "task kill_timeout": jobspec.Honoured, "task env": jobspec.Honoured,
		"update canary": jobspec.Note, "port static": jobspec.Honoured, "check grpc_service": jobspec.Refused, "service meta": jobspec.Warning,
		"job vault": jobspec.Refused, "ephemeral_disk size": jobspec.Note, "identity filepath": jobspec.Honoured, "resources cores": jobspec.Refused,
	} {
		if !slices.ContainsFunc(rows, func(r jobspec.Row) bool { return r.Block+" "+r.Attribute == want && r.Severity == severity }) {
			t.Errorf("%s is not %s", want, severity)
		}
	}
	seen := map[jobspec.Row]bool{}
	for _, r := range rows {
		if seen[r] {
			t.Errorf("%v is there twice", r)
		}
		seen[r] = true
		if r.Severity != jobspec.Honoured && r.Words == "" || strings.HasSuffix(r.Words, ".") {
			t.Errorf("%v: words are missing, or end with a full stop", r)
		}
	}
}
