package services_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/services"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

const allocID = "115ef685-6b9e-3eaf-e74b-6b04f094ebca"

// allocOf returns an allocation of a group with services of its own and of two tasks.
func allocOf(group []*api.Service, a, b []*api.Service) *api.Allocation {
	g := api.NewTaskGroup("g", 1)
	g.Services, g.Tasks = group, []*api.Task{{Name: "a", Services: a}, {Name: "b", Services: b}}
	return &api.Allocation{ID: allocID, Namespace: "team", JobID: "job", NodeID: "node", TaskGroup: "g",
		Job: &api.Job{ID: new("job"), TaskGroups: []*api.TaskGroup{g}}}
}

// ofTask resolves references by the task that they are resolved for.
var ofTask = services.Resolver{
	Replace: func(task, s string) string {
		known := []string{"${NOMAD_ALLOC_INDEX}", "0", "${LABEL}", "http"}
		if task != "" {
			known = append(known, "${NOMAD_TASK_NAME}", task, "${COLOUR}", "blue of "+task)
		}
		return strings.NewReplacer(known...).Replace(s)
	},
	Ports: []api.PortMapping{{Label: "http", Value: 20530, To: 80, HostIP: "127.0.0.2"}},
	Job:   "job", Group: "g",
}

// TestInstances: IDs, addresses and texts of a group's service and of tasks' own, each with its own task's environment.
func TestInstances(t *testing.T) {
	t.Parallel()
	tags := []string{"${NOMAD_TASK_NAME}", "${COLOUR}", "${NOMAD_ALLOC_INDEX}", "$${x}"}
	service := func() *api.Service {
		return &api.Service{
			Name: "web-${NOMAD_TASK_NAME}", Provider: "nomad", PortLabel: "${LABEL}", Tags: tags,
			CanaryTags: []string{"canary-${COLOUR}"},
			Meta:       map[string]string{"k-${NOMAD_TASK_NAME}": "${COLOUR}"},
			CanaryMeta: map[string]string{"canary": "${NOMAD_TASK_NAME}"},
			Checks: []api.ServiceCheck{{Type: "http", Path: "/${NOMAD_TASK_NAME}", Interval: time.Second, Timeout: time.Second},
				{Type: "script"}, {Type: "tcp", PortLabel: "81"}, {Type: "tcp", PortLabel: "nope"}},
		}
	}
	alloc := allocOf([]*api.Service{service()}, []*api.Service{service()}, []*api.Service{service()})
	owned := must.Get(ofTask.ResolveAll(alloc, "dc1"))(t)
	for task, colour := range map[string]string{"": "${COLOUR}", "a": "blue of a", "b": "blue of b"} {
		name, owner := task, task
		if task == "" {
			name, owner = "${NOMAD_TASK_NAME}", "group-g"
		}
		want := api.ServiceRegistration{
			ID: fmt.Sprintf("_nomad-task-%s-%s-web-%s-http", allocID, owner, name), ServiceName: "web-" + name,
			Tags: []string{name, colour, "0", "$${x}"}, Address: "127.0.0.2", Port: 20530,
			Namespace: "team", JobID: "job", AllocID: allocID, NodeID: "node", Datacenter: "dc1",
		}
		got := *owned[task][0]
		same.As(t, "/"+name, got.Service.Checks[0].Path, task, ": the check's path is")
		if got.Service.Name != got.ServiceName || got.Service.PortLabel != "http" || got.Task != task ||
			got.Service.Meta["k-"+name] != colour {
			t.Errorf("%q: the block is %+v", task, got.Service)
		}
		if !slices.Equal(got.CheckAddresses, []string{"127.0.0.2:20530", "", "127.0.0.1:81", ""}) {
			t.Errorf("%q: the checks connect to %q", task, got.CheckAddresses)
		}
		if diff := cmp.Diff(want, got.ServiceRegistration); diff != "" {
			t.Errorf("of %q (-want +got):\n%s", task, diff)
		}
	}
	same.As(t, "${NOMAD_TASK_NAME}", tags[0], "the job has changed")
}

// TestNames that Nomad's servers resolve.
func TestNames(t *testing.T) {
	t.Parallel()
	for task, want := range map[string]string{"": "job-g-group job g group", "a": "job-g-a job g a"} {
		same.As(t, want, ofTask.Resolve(task, &api.Service{Name: "${BASE} ${JOB} ${TASKGROUP} ${TASK}"}).Name, task)
	}
}

// TestServicesThatCanNotBe are refused, each by its name.
func TestServicesThatCanNotBe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		group, a []*api.Service
		want     string
	}{
		"no such port": {[]*api.Service{{Name: "x", PortLabel: "nope"}}, nil, `service "x": port is "nope"`},
		"alloc": {[]*api.Service{{Name: "x", PortLabel: "http", AddressMode: "alloc"}}, nil,
			`service "x": address_mode is "alloc"`},
		"driver": {nil, []*api.Service{{Name: "x", PortLabel: "http", AddressMode: "driver"}},
			`service "x": address_mode is "driver"`},
		"an address and host": {
			[]*api.Service{{Name: "x", PortLabel: "http", Address: "example.com",
				AddressMode: "host"}}, nil, `service "x": with an address`},
		"twice": {[]*api.Service{{Name: "x", PortLabel: "http"}, {Name: "x", PortLabel: "${LABEL}"}}, nil,
			`service "x": another service has its ID`},
		"not the second alone": {[]*api.Service{{Name: "x", PortLabel: "nope"}, {Name: "y", AddressMode: "alloc"}}, nil,
			`service "y"`},
	} {
		_, err := ofTask.ResolveAll(allocOf(c.group, c.a, nil), "dc1")
		same.Says(t, nil, c.want, err, name)
	}
	if _, err := ofTask.ResolveAll(&api.Allocation{TaskGroup: "g", Job: &api.Job{}}, ""); err == nil {
		t.Error("a job without the group has services")
	}
}
