package review_test

import (
	"slices"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec/review"
)

// TestRowsAreAboutTheSpecification: no row is about a block or an attribute that job files don't have, and each of
// those has a row.
func TestRowsAreAboutTheSpecification(t *testing.T) {
	rows := review.Rows()
	last := slices.IndexFunc(rows, func(r review.Row) bool {
		return r.Block == "job" && r.Attribute == "consul_namespace"
	})
	var inJSON []string
	for _, r := range rows[last:] {
		inJSON = append(inJSON, r.Block+" "+r.Attribute)
	}
	if want := []string{"job consul_namespace", "job consul_namespace", "job payload", "job stop",
		"job vault_namespace", "periodic spec_type"}; !slices.Equal(inJSON, want) {
		t.Errorf("%v are in no job file, want %v", inJSON, want)
	}
	for want, severity := range map[string]review.Severity{
		"job multiregion": review.Refused, "group count": review.Note, "task kill_timeout": review.Honoured,
		"task env":      review.Honoured,
		"update canary": review.Note, "port static": review.Honoured, "check grpc_service": review.Refused,
		"service meta": review.Warning,
		"job vault":    review.Refused, "ephemeral_disk size": review.Note, "identity filepath": review.Honoured,
		"resources cores": review.Honoured, "resources numa": review.Refused,
	} {
		if !slices.ContainsFunc(rows, func(r review.Row) bool {
			return r.Block+" "+r.Attribute == want &&
				r.Severity == severity
		}) {
			t.Errorf("%s is not %s", want, severity)
		}
	}
	seen := map[review.Row]bool{}
	for _, r := range rows {
		if seen[r] {
			t.Errorf("%v is there twice", r)
		}
		seen[r] = true
		if r.Severity != review.Honoured && r.Words == "" || strings.HasSuffix(r.Words, ".") {
			t.Errorf("%v: words are missing, or end with a full stop", r)
		}
	}
}
