package output_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/output"
)

func TestCompareAllocs(t *testing.T) {
	alloc := func(name, status string, created int64) *api.Allocation {
		return &api.Allocation{Name: name, ClientStatus: status, CreateTime: created}
	}
	all := []*api.Allocation{
		nil,
		alloc("ended early", api.AllocClientStatusComplete, 1),
		alloc("runs long", api.AllocClientStatusRunning, 2),
		alloc("ended late", api.AllocClientStatusFailed, 3),
		alloc("starts", api.AllocClientStatusPending, 4),
	}
	slices.SortFunc(all, output.CompareAllocs)
	var got []string
	for _, a := range all {
		got = append(got, cmp.Or(a, &api.Allocation{Name: "unknown"}).Name)
	}
	if want := []string{"starts", "runs long", "ended late", "ended early", "unknown"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
