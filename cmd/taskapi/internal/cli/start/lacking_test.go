package start

import (
	"strconv"
	"strings"
	"testing"
)

func TestLackingIsNamed(t *testing.T) {
	var l Lacking
	line := func() string {
		var b strings.Builder
		l.Print(&b)
		return b.String()
	}
	if got := line(); got != "" {
		t.Errorf("nothing was refused: %q", got)
	}
	l.Add("variables-write", "nomad/jobs/dev")
	l.Add("variables-write", "nomad/jobs/dev")
	if got, want := line(), "taskapi: 2 refused: variables-write on nomad/jobs/dev; see --policy\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for i := range 20 {
		l.Add("read-job", "/v1/job/"+strconv.Itoa(i))
	}
	if got := line(); !strings.HasPrefix(got,
		"taskapi: 22 refused: 2 variables-write on nomad/jobs/dev, 1 read-job on /v1/job/0, ") ||
		!strings.HasSuffix(got, "/v1/job/8, 11 others; see --policy\n") {
		t.Errorf("many: %q", got)
	}
}
