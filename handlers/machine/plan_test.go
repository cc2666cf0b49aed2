package machine

import (
	"math"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestPlanOfTooMany: a job that asks for more allocations than a machine runs is refused before they are counted.
func TestPlanOfTooMany(t *testing.T) {
	job := &api.Job{ID: new("job"), TaskGroups: []*api.TaskGroup{
		{Name: new("one")}, {Name: new("many"), Count: new(math.MaxInt)},
	}}
	_, err := newPlanned(job, nil)
	if err == nil || !strings.Contains(err.Error(), `group "many": count: the job asks for more than 1000 allocations`) {
		t.Errorf("it answers %v", err)
	}
}
