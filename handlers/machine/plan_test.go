package machine

import (
	"math"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestPlanOfTooMany: a job that asks for more allocations than a machine runs is refused before they are
// counted, and so is one of whose allocations two would have a static port.
func TestPlanOfTooMany(t *testing.T) {
	job := &api.Job{ID: new("job"), TaskGroups: []*api.TaskGroup{
		{Name: new("one")}, {Name: new("many"), Count: new(math.MaxInt)},
	}}
	web := []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 80}}}}
	ports := &api.Job{ID: new("job"), TaskGroups: []*api.TaskGroup{
		{Name: new("one"), Networks: web},
		{Name: new("two"), Tasks: []*api.Task{{Name: "t", Resources: &api.Resources{Networks: web}}}},
	}}
	_, err := newPlanned(ports, nil)
	if err == nil || !strings.Contains(err.Error(), `port "t/http": group "one" has the static port 80, too`) {
		t.Errorf("it answers %v", err)
	}
	_, err = newPlanned(job, nil)
	if err == nil || !strings.Contains(err.Error(), `group "many": count: the job asks for more than 1000 allocations`) {
		t.Errorf("it answers %v", err)
	}
}
