package deployment_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"taskapi/allocrunner/deployment"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/same"
)

// version returns an allocation with a version of its job, as it begins.
func version(n uint64, id string) *api.Allocation {
	return &api.Allocation{
		ID: "alloc", Namespace: "default", JobID: "web", TaskGroup: "g", DeploymentID: id,
		DesiredStatus: api.AllocDesiredStatusRun,
		ClientStatus:  api.AllocClientStatusPending, ModifyIndex: 10 * (n + 1), ModifyTime: int64(n+1) * int64(time.Second),
		Job: &api.Job{
			ID: new("web"), Type: new("service"), Version: &n, CreateIndex: new(uint64(1)), ModifyIndex: new(
				10 * (n + 1)), JobModifyIndex: new(10 * (n + 1)),
			TaskGroups: []*api.TaskGroup{{Name: new("g"), Update: &api.UpdateStrategy{MaxParallel: new(1),
				ProgressDeadline: new(time.Minute)}}},
		},
	}
}

// with returns a later version of an allocation.
func with(alloc *api.Allocation, edit func(*api.Allocation)) *api.Allocation {
	later := *alloc
	edit(&later)
	later.ModifyIndex++
	return &later
}

func healthy(is bool) func(*api.Allocation) {
	return func(a *api.Allocation) { a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: &is} }
}

func stopped(by *api.Allocation) func(*api.Allocation) {
	return func(a *api.Allocation) { interfaces.StopRequest{ReplacedBy: by}.Apply(a) }
}

// outcome is the visible result of a deployment.
type outcome struct {
	ID, Status, Description    string
	Placed, Healthy, Unhealthy int
}

func outcomes(all []*api.Deployment) (list []outcome) {
	for _, d := range all {
		s := d.TaskGroups["g"]
		list = append(list, outcome{d.ID, d.Status, d.StatusDescription, s.PlacedAllocs, s.HealthyAllocs, s.UnhealthyAllocs})
	}
	return list
}

func TestNext(t *testing.T) {
	first, next := version(0, "a"), version(1, "b")
	at := deployment.Moment{Index: 15, Time: 1}
	running := outcome{"a", "running", "Deployment is running", 1, 0, 0}
	waiting := outcome{"b", "running", "Deployment is running", 0, 0, 0}
	newer := outcome{"a", "cancelled", "Cancelled due to newer version of job", 1, 0, 0}
	began := deployment.Changed{Alloc: first}
	accepted := deployment.Accepted{Next: next, At: at}
	ends := deployment.Changed{Alloc: with(first, stopped(next))}
	for name, c := range map[string]struct {
		events []deployment.Event
		want   []outcome
	}{
		"begun": {[]deployment.Event{began}, []outcome{running}},
		"healthy": {[]deployment.Event{began, deployment.Changed{Alloc: with(first, healthy(true))}},
			[]outcome{{"a", "successful", "Deployment completed successfully", 1, 1, 0}}},
		"unhealthy": {[]deployment.Event{began, deployment.Changed{Alloc: with(first, healthy(false))}},
			[]outcome{{"a", "failed", "Failed due to unhealthy allocations", 1, 0, 1}}},
		"ended": {[]deployment.Event{began,
			deployment.Changed{Alloc: with(first, func(a *api.Allocation) { a.ClientStatus = "complete" })}},
			[]outcome{{"a", "failed", "Failed due to unhealthy allocations", 1, 0, 0}}},
		"stopped": {[]deployment.Event{began, deployment.Changed{Alloc: with(first, stopped(nil))}},
			[]outcome{{"a", "cancelled", "Cancelled because job is stopped", 1, 0, 0}}},
		"marked": {[]deployment.Event{began, deployment.Failed{ID: "a", At: at}},
			[]outcome{{"a", "failed", "Deployment marked as failed", 1, 0, 0}}},
		"overdue": {[]deployment.Event{began, deployment.Failed{ID: "a", Overdue: true, At: at}},
			[]outcome{{"a", "failed", "Failed due to progress deadline", 1, 0, 0}}},
		"in place": {[]deployment.Event{began, deployment.Changed{Alloc: next}},
			[]outcome{{"b", "running", "Deployment is running", 1, 0, 0}, newer}},
		"without a deployment": {[]deployment.Event{began, deployment.Changed{Alloc: version(1, "")}}, []outcome{newer}},
		"accepted":             {[]deployment.Event{began, accepted, ends}, []outcome{waiting, newer}},
		"replaced": {[]deployment.Event{began, accepted, ends, deployment.Changed{Alloc: next},
			deployment.Changed{Alloc: with(next, healthy(true))}},
			[]outcome{{"b", "successful", "Deployment completed successfully", 1, 1, 0}, newer}},
		"accepted twice": {[]deployment.Event{began, accepted, ends, deployment.Accepted{Next: version(2, "c"), At: at}},
			[]outcome{{"c", "running", "Deployment is running", 0, 0, 0},
				{"b", "cancelled", "Cancelled due to newer version of job", 0, 0, 0}, newer}},
		"accepted, then stopped": {[]deployment.Event{began, accepted, ends,
			deployment.Changed{Alloc: with(first, stopped(nil))}},
			[]outcome{{"b", "cancelled", "Cancelled because job is stopped", 0, 0, 0}, newer}},
	} {
		t.Run(name, func(t *testing.T) {
			var all deployment.State
			for _, e := range c.events {
				all = all.Next(e)
			}
			same.As(t, c.want, outcomes(all))
			if again := all.Next(c.events[len(c.events)-1]); len(all) > 0 && &again[0] != &all[0] {
				t.Error("an event that changes nothing makes another list")
			}
		})
	}
}

func TestBegin(t *testing.T) {
	got := deployment.State(nil).Next(deployment.Changed{Alloc: version(3, "a")})[0]
	want := &api.Deployment{
		ID: "a", Namespace: "default", JobID: "web", JobVersion: 3, JobModifyIndex: 40, JobSpecModifyIndex: 40,
		JobCreateIndex: 1,
		Status:         "running", StatusDescription: "Deployment is running", CreateIndex: 40, ModifyIndex: 40,
		CreateTime: 4e9,
		ModifyTime: 4e9,
		TaskGroups: map[string]*api.DeploymentState{"g": {
			DesiredTotal: 1, PlacedAllocs: 1, ProgressDeadline: time.Minute, RequireProgressBy: time.Unix(64, 0).UTC(),
		}},
	}
	same.As(t, want, got)
}

// TestDeadline counts from the allocation's placement, not from the acceptance of its version.
func TestDeadline(t *testing.T) {
	first, next := version(0, "a"), version(1, "b")
	all := deployment.State(nil).Next(deployment.Changed{Alloc: first})
	all = all.Next(deployment.Accepted{Next: next, At: deployment.Moment{Index: 15, Time: 1}})
	if id, by := all.Deadline(); id != "" {
		t.Errorf("%s, which waits for the allocation, has to be over by %v", id, by)
	}
	all = all.Next(deployment.Changed{Alloc: next})
	if id, by := all.Deadline(); id != "b" || !by.Equal(time.Unix(62, 0)) {
		t.Errorf("%q has to be over by %v, want b a minute after its placement", id, by)
	}
}

func TestNewID(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*api.Job)
		want bool
	}{
		"service":         {func(*api.Job) {}, true},
		"batch":           {func(j *api.Job) { j.Type = new("batch") }, false},
		"system":          {func(j *api.Job) { j.Type = new("system") }, false},
		"max_parallel 0":  {func(j *api.Job) { j.TaskGroups[0].Update.MaxParallel = new(0) }, false},
		"no update block": {func(j *api.Job) { j.TaskGroups[0].Update = nil }, false},
	} {
		job := version(0, "").Job
		if c.edit(job); (deployment.NewID(job, job.TaskGroups[0]) != "") != c.want {
			t.Errorf("%s: has a deployment: %v, want %v", name, !c.want, c.want)
		}
	}
}

// TestForgotten: an allocation whose deployment is no longer kept, since many versions were accepted meanwhile, does
// not begin another one.
func TestForgotten(t *testing.T) {
	alloc := version(0, "0")
	all := deployment.State(nil).Next(deployment.Changed{Alloc: alloc})
	for n := uint64(1); n <= deployment.Kept; n++ {
		all = all.Next(deployment.Accepted{Next: version(n, string(rune('0'+n))),
			At: deployment.Moment{Index: 10 * n}})
	}
	want := outcomes(all)
	ends := with(alloc, stopped(version(deployment.Kept, "6")))
	same.As(t, want, outcomes(all.Next(deployment.Changed{Alloc: ends})))
}

// TestAnySequence: after any events in any order, at most the latest deployment runs, an ended deployment does not
// change, an index never falls, and a returned list does not change.
func TestAnySequence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alloc, n := version(0, "0"), uint64(0)
		all := deployment.State(nil).Next(deployment.Changed{Alloc: alloc})
		id := func() string { return string(rune('0' + n)) }
		for range rapid.IntRange(1, 20).Draw(t, "events") {
			var event deployment.Event
			switch rapid.SampledFrom([]string{"same", "healthy", "unhealthy", "stop", "in place", "accept", "mark",
				"end"}).Draw(t, "event") {
			case "same":
				event = deployment.Changed{Alloc: alloc}
			case "healthy", "unhealthy":
				alloc = with(alloc, healthy(rapid.Bool().Draw(t, "healthy")))
				event = deployment.Changed{Alloc: alloc}
			case "stop":
				alloc = with(alloc, stopped(nil))
				event = deployment.Changed{Alloc: alloc}
			case "in place":
				n++
				alloc = version(n, id())
				event = deployment.Changed{Alloc: alloc}
			case "accept":
				n++
				next := version(n, id())
				alloc = with(alloc, stopped(next))
				event = deployment.Accepted{Next: next, At: deployment.Moment{Index: alloc.ModifyIndex, Time: 1}}
			case "mark":
				alloc = with(alloc, func(*api.Allocation) {})
				event = deployment.Failed{ID: id(), At: deployment.Moment{Index: alloc.ModifyIndex, Time: 1}}
			case "end":
				alloc = with(alloc, func(a *api.Allocation) { a.ClientStatus = "failed" })
				event = deployment.Changed{Alloc: alloc}
			}
			before := outcomes(all)
			next := all.Next(event)
			if diff := cmp.Diff(before, outcomes(all)); diff != "" {
				t.Fatalf("%#v has changed what was there before: %s", event, diff)
			}
			for i, d := range next {
				if d.Status == api.DeploymentStatusRunning && i > 0 {
					t.Fatalf("%#v: deployment %d of %+v runs", event, i, outcomes(next))
				}
				was := slices.IndexFunc(all, func(was *api.Deployment) bool { return was.ID == d.ID })
				if was >= 0 && all[was].Status != api.DeploymentStatusRunning && all[was].Status != d.Status {
					t.Fatalf("%#v: %s was %s and is %s", event, d.ID, all[was].Status, d.Status)
				}
			}
			if len(next) > deployment.Kept {
				t.Fatalf("%d are kept", len(next))
			}
			all = next
		}
	})
}
