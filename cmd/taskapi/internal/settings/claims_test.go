package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/identity/workload"
	"taskapi/internal/must"
)

// TestExtraClaims: references stay for the tokens, in a file as in -o.
func TestExtraClaims(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	must.OK(t, os.WriteFile(path, []byte(`identity {
  required_extra_claims = { "a b" = "${job.namespace}/$${job.id}:${alloc.id}", none = "", number = 7 }
  optional_extra_claims = {
    team = "${job.meta.team}"
    long = <<-EOT
      ${job.meta.cost-center}
    EOT
  }
}
`), 0o600))
	file := must.Get(ReadMachine(path))(t)
	want := workload.ExtraClaims{
		Required: map[string]string{"a b": "${job.namespace}/${job.id}:${alloc.id}", "none": "", "number": "7"},
		Optional: map[string]string{"team": "${job.meta.team}", "long": "${job.meta.cost-center}\n"},
	}
	if diff := cmp.Diff(want, must.Get(file.resolve())(t).ExtraClaims); diff != "" {
		t.Errorf("of the file (-want +got):\n%s", diff)
	}
	given := must.Get(ParseOptions([]string{
		"identity.optional_extra_claims=a=b=${job.id}", "identity.optional_extra_claims=c=,d",
	}, "/"))(t)
	want.Optional = map[string]string{"a": "b=${job.id}", "c": ",d"}
	if diff := cmp.Diff(want, must.Get(given.over(file).resolve())(t).ExtraClaims); diff != "" {
		t.Errorf("with -o (-want +got):\n%s", diff)
	}
	for _, value := range []string{
		`"a"`, `["a=b"]`, `{ a = b }`, `{ a = ["b"] }`, `{ a = null }`, `{ a = "${upper("x")}" }`, `{ a = job.id }`,
		`{ a = "%{ if true }x%{ endif }" }`, `{ a = "b", a = "c" }`, `{ "" = "b" }`, `{ a = { b = "c" } }`,
	} {
		must.OK(t, os.WriteFile(path, []byte("identity {\n  required_extra_claims = "+value+"\n}\n"), 0o600))
		if _, err := ReadMachine(path); err == nil || !strings.HasPrefix(err.Error(), path+":2:27: ") {
			t.Errorf("%s: %v, want an error with the place", value, err)
		}
	}
	for _, option := range []string{"a", "=b"} {
		all := must.Get(ParseOptions([]string{"identity.required_extra_claims=" + option}, "/"))(t)
		if _, err := all.resolve(); err == nil {
			t.Errorf("-o …=%s is accepted", option)
		}
	}
}
