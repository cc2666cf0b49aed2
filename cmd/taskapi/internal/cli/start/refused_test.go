package start

import (
	"strconv"
	"strings"
	"testing"

	"taskapi/auth"
	"taskapi/internal/same"
)

func TestRefusedIsNamed(t *testing.T) {
	var r auth.Refusals
	lack := func(task, path string, c auth.Capability) {
		r.Lacked(auth.Owner{Task: task}, "GET", path, path, auth.CapabilitySet(c))
	}
	line := func() string {
		var b strings.Builder
		PrintRefused(&b, &r)
		return b.String()
	}
	same.As(t, "", line(), "no refusal")
	lack("a", "/v1/var/nomad/jobs/dev", auth.VariablesWrite)
	lack("b", "/v1/var/nomad/jobs/dev", auth.VariablesWrite)
	same.As(t, "taskapi: 2 refused: variables-write on nomad/jobs/dev; see --policy\n", line(), "two refusals")
	for i := range 12 {
		lack("a", "/v1/job/"+strconv.Itoa(i), auth.ReadJob)
	}
	if got := line(); !strings.HasPrefix(got,
		"taskapi: 14 refused: 2 variables-write on nomad/jobs/dev, 1 read-job on /v1/job/0, ") ||
		!strings.HasSuffix(got, "/v1/job/6, 3 others; see --policy\n") {
		t.Errorf("many: %q", got)
	}
}
