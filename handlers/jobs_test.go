package handlers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/handlers"
	"taskapi/handlers/allocations"
	"taskapi/handlers/apierror"
	"taskapi/handlers/jobs"
	"taskapi/internal/must"
)

func TestSDKJobs(t *testing.T) {
	alloc := newAlloc(t)
	client := newServer(t, alloc).sdk(t, operator).Jobs()

	job, meta, err := client.Info("demo", nil)
	if err != nil || meta.LastIndex != 34 {
		t.Fatalf("info: %+v, %v", meta, err)
	}
	want := *alloc.snapshot().Job
	want.Status = new("running")
	if diff := cmp.Diff(&want, job); diff != "" {
		t.Errorf("info: -runner +SDK\n%s", diff)
	}
	list, _, err := client.ListOptions(&api.JobListOptions{Fields: &api.JobListFields{Meta: true}}, nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("list = %v, %v", list, err)
	}
	stub := list[0]
	if stub.ID != "demo" || stub.Type != "service" || stub.Status != "running" || stub.JobModifyIndex != 13 ||
		stub.Priority != 50 ||
		stub.JobSummary.Summary["web"].Running != 1 {
		t.Errorf("list = %+v", stub)
	}
	for prefix, want := range map[string]int{"de": 1, "x": 0} {
		if list, _, err := client.PrefixList(prefix); err != nil || len(list) != want {
			t.Errorf("list with prefix %q = %v, %v; want %d", prefix, list, err, want)
		}
	}
	if list, _, err := client.List(&api.QueryOptions{Namespace: "prod"}); err != nil || len(list) != 0 {
		t.Errorf("list of another namespace = %v, %v", list, err)
	}
	_, _, err = client.Info("other/job", nil)
	wantSDKError(t, err, 404, "job not found")
	_, _, err = client.Info("demo", &api.QueryOptions{Namespace: "prod"})
	wantSDKError(t, err, 404, "job not found")
}

// TestJobOfAFile: one that no server has stamped was submitted when its allocation was made; the stock command ends
// badly without a time.
func TestJobOfAFile(t *testing.T) {
	alloc := newAlloc(t)
	current, job := *alloc.snapshot(), *alloc.snapshot().Job
	job.SubmitTime = nil
	current.Job = &job
	alloc.snapshot = func() *api.Allocation { return &current }
	got, _, err := newServer(t, alloc).sdk(t, goodToken).Jobs().Info("demo", nil)
	if err != nil || got.SubmitTime == nil || *got.SubmitTime != current.CreateTime {
		t.Errorf("got %+v, %v; want the allocation's time", got, err)
	}
}

// TestJobStatus: the job's status is that of its allocation.
func TestJobStatus(t *testing.T) {
	alloc := newAlloc(t)
	current := *alloc.snapshot()
	alloc.snapshot = func() *api.Allocation { snapshot := current; return &snapshot }
	client := newServer(t, alloc).sdk(t, goodToken).Jobs()
	for status, want := range map[string]string{"pending": "pending", "running": "running", "complete": "dead",
		"failed": "dead", "lost": "dead"} {
		current.ClientStatus = status
		job, _, err := client.Info("demo", nil)
		if err != nil || *job.Status != want {
			t.Errorf("the job of a %s allocation is %v (%v), want %s", status, job.Status, err, want)
		}
		if list, _, err := client.List(nil); err != nil || list[0].Status != want {
			t.Errorf("the listed job of a %s allocation is %s (%v), want %s", status, list[0].Status, err, want)
		}
	}
	current.Job = nil
	_, _, err := client.Info("demo", nil)
	wantSDKError(t, err, 404, "job not found")
}

func TestSDKRegister(t *testing.T) {
	type call struct {
		id      string
		allowed jobs.Allowed
	}
	calls, fake := make(chan call, 1), quietJobs()
	fake.register = func(_ context.Context, job *api.Job, _ *api.JobSubmission, force jobs.Allowed) (jobs.Registration,
		error) {
		calls <- call{*job.ID, force}
		return jobs.Registration{Index: 36, Warnings: "mind the gap"}, nil
	}
	s := newServer(t, newAlloc(t), func(c *handlers.Config) { c.Jobs = fake })
	client, job := s.sdk(t, operator).Jobs(), &api.Job{ID: new("demo")}

	got, meta, err := client.Register(job, nil)
	if err != nil || uuid.Validate(got.EvalID) != nil || got.EvalCreateIndex != 36 || got.JobModifyIndex != 36 ||
		got.Warnings != "mind the gap" || meta.LastIndex != 36 {
		t.Errorf("register = %+v, %+v, %v", got, meta, err)
	}
	if got := <-calls; got != (call{"demo", jobs.Allowed{Replace: true}}) {
		t.Errorf("registered %+v, want demo, also with new processes", got)
	}
	if _, _, err := client.EnforceRegister(job, 13, nil); err != nil {
		t.Errorf("register with the right index: %v", err)
	}
	<-calls
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		if got := s.do(t, method, "/v1/job/demo?force=false", operator, anyBody); got.Status != 200 {
			t.Errorf("%s by the job's path without force = %d %q", method, got.Status, got.Body)
		}
		if got := <-calls; got != (call{"demo", jobs.Allowed{}}) {
			t.Errorf("registered %+v, want demo without force", got)
		}
	}

	_, _, err = client.EnforceRegister(job, 12, nil)
	wantSDKError(t, err, 409, "Enforcing job modify index 12: job exists with conflicting job modify index: 13")
	_, _, err = client.EnforceRegister(job, 0, nil)
	wantSDKError(t, err, 409, "Enforcing job modify index 0: job already exists")
	_, _, err = s.sdk(t, goodToken).Jobs().Register(job, nil)
	wantSDKError(t, err, 403, "Permission denied")
	for kind, status := range map[apierror.Kind]int{apierror.Conflict: 409, apierror.Invalid: 400,
		apierror.Unavailable: 503} {
		fake.register = func(context.Context, *api.Job, *api.JobSubmission, jobs.Allowed) (jobs.Registration, error) {
			return jobs.Registration{}, runnerError(kind, "for a reason")
		}
		_, _, err = client.Register(job, nil)
		wantSDKError(t, err, status, "for a reason")
	}
}

func TestRegisterBadInput(t *testing.T) {
	s := newServer(t, newAlloc(t), func(c *handlers.Config) { c.Jobs = quietJobs() })
	none := newServer(t, newAlloc(t))
	large := func(size int) string {
		body := `{"Job":{"ID":"demo","Payload":"` // and white space, so that the size is exact
		return body + `"}}` + strings.Repeat(" ", size-len(body)-len(`"}}`))
	}
	for _, c := range []struct {
		s            *server
		target, body string
		status       int
		want         string
	}{
		{s, "/v1/jobs", "{}", 400, "Job must be specified"},
		{s, "/v1/jobs", "null", 400, "Job must be specified"},
		{s, "/v1/jobs", "", 400, "Failed to decode body: EOF"},
		{s, "/v1/jobs", `{"Job":{}}`, 400, "Job must have an ID"},
		{s, "/v1/jobs?force=perhaps", anyBody, 400, `force must be true or false, not "perhaps"`},
		{s, "/v1/jobs", large(1<<20 + 1), 413, "the body is larger than 1048576 bytes"},
		{s, "/v1/job/demo/plan", large(1<<20 + 1), 413, "the body is larger than 1048576 bytes"},
		{s, "/v1/job/other", anyBody, 400, "Job ID does not match"},
		{s, "/v1/job/demo", "{}", 400, "Job must be specified"},
		{s, "/v1/job/demo", large(1<<20 + 1), 413, "the body is larger than 1048576 bytes"},
		{none, "/v1/job/demo", anyBody, 404, "resource not found"},
		{s, "/v1/job/other/plan", anyBody, 400, "Job ID does not match"},
		{s, "/v1/job/demo/plan", "{}", 400, "Job must be specified"},
		{s, restartPath, large(64<<10 + 1), 413, "the body is larger than 65536 bytes"},
		{none, "/v1/jobs", anyBody, 404, "resource not found"},
		{none, "/v1/job/demo/plan", anyBody, 404, "resource not found"},
	} {
		if got := c.s.do(t, http.MethodPut, c.target, operator, c.body); got.Status != c.status || got.Body != c.want {
			t.Errorf("PUT %s %.40q = %d %q, want %d %q", c.target, c.body, got.Status, got.Body, c.status, c.want)
		}
	}
	if got := s.do(t, http.MethodPut, "/v1/jobs", operator, large(1<<20)); got.Status != 200 {
		t.Errorf("a job of 1 MiB = %d %q, want it taken", got.Status, got.Body)
	}
}

// TestRegisterOneAtATime: an index that one client enforces can't be passed by another's registration in between.
func TestRegisterOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc, fake := newAlloc(t), quietJobs()
		index, release := atomic.Uint64{}, make(chan struct{})
		index.Store(13)
		now, job := *alloc.snapshot(), *alloc.snapshot().Job
		alloc.snapshot = func() *api.Allocation {
			job, now := job, now
			job.JobModifyIndex, now.Job = new(index.Load()), &job
			return &now
		}
		fake.register = func(context.Context, *api.Job, *api.JobSubmission, jobs.Allowed) (jobs.Registration, error) {
			<-release
			return jobs.Registration{Index: index.Add(1)}, nil
		}
		dial, stop := bubbled(t, alloc, func(c *handlers.Config) { c.Jobs = fake })
		defer stop()
		replies := make(chan reply, 2)
		body := `{"Job":{"ID":"demo"},"EnforceIndex":true,"JobModifyIndex":13}`
		for range 2 {
			c := dial()
			defer c.Close()
			go func() { _, _ = io.WriteString(c, head("PUT", "/v1/jobs", operator, body)) }()
			go func() {
				response, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Error(err)
					close(replies)
					return
				}
				replies <- readReply(t, response)
			}()
		}
		synctest.Wait() // one is being registered, the other waits
		close(release)
		first, second := <-replies, <-replies
		if first.Status != 200 {
			first, second = second, first
		}
		const words = "Enforcing job modify index 13: job exists with conflicting job modify index: 14"
		if first.Status != 200 || second.Status != 409 || second.Body != words {
			t.Errorf("%d %q and %d %q; want one done, and of the other %q", first.Status, first.Body, second.Status,
				second.Body, words)
		}
	})
}

func TestSDKPlan(t *testing.T) {
	fake := quietJobs()
	var changes []jobdiff.Change
	fake.plan = func(context.Context, *api.Job) (jobs.Plan, error) {
		return jobs.Plan{Changes: changes, Warnings: "mind the gap"}, nil
	}
	client := newServer(t, newAlloc(t), func(c *handlers.Config) { c.Jobs = fake }).sdk(t, operator).Jobs()
	stays := jobdiff.Change{Path: "job > priority", InPlace: true, Text: "changes from 50 to 60"}
	goes := jobdiff.Change{Path: `group "web" > task "server" > user`, Text: "changes"}
	for word, c := range map[string]struct {
		changes []jobdiff.Change
		updates api.DesiredUpdates
		kind    string
	}{
		"ignore":                {nil, api.DesiredUpdates{Ignore: 1}, "None"},
		"in-place update":       {[]jobdiff.Change{stays}, api.DesiredUpdates{InPlaceUpdate: 1}, "Edited"},
		"create/destroy update": {[]jobdiff.Change{stays, goes}, api.DesiredUpdates{DestructiveUpdate: 1}, "Edited"},
	} {
		changes = c.changes
		got, _, err := client.Plan(&api.Job{ID: new("demo")}, true, nil)
		must.OK(t, err)
		if diff := cmp.Diff(map[string]*api.DesiredUpdates{"web": &c.updates}, got.Annotations.DesiredTGUpdates); diff != "" {
			t.Errorf("%s: -want +got\n%s", word, diff)
		}
		if got.JobModifyIndex != 13 || got.Warnings != "mind the gap" || got.Diff.Type != c.kind ||
			len(got.Diff.Fields) != len(c.changes) ||
			got.Diff.TaskGroups[0].Updates[word] != 1 {
			t.Errorf("%s: plan = %+v, diff %+v", word, got, got.Diff)
		}
	}
	field := api.FieldDiff{Type: "Edited", Name: stays.Path, New: stays.Text,
		Annotations: []string{"forces in-place update"}}
	got, _, err := client.Plan(&api.Job{ID: new("demo")}, true, nil)
	if err == nil && len(got.Diff.Fields) > 0 {
		if diff := cmp.Diff(&field, got.Diff.Fields[0]); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	if got, _, err := client.Plan(&api.Job{ID: new("demo")}, false, nil); err != nil || got.Diff != nil {
		t.Errorf("a plan without diff = %+v, %v", got.Diff, err)
	}
}

// TestUpdatedAllocation: what an update and the health of the allocation change is in its next answer.
func TestUpdatedAllocation(t *testing.T) {
	alloc := newAlloc(t)
	current := alloc.snapshot()
	alloc.snapshot = func() *api.Allocation { return current }
	client := newServer(t, alloc).sdk(t, goodToken).Allocations()
	if _, _, err := client.Info(allocID, nil); err != nil { // it is in the cache now
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 21, 10, 0, 0, 5, time.UTC)
	job := *current.Job
	job.JobModifyIndex, job.ModifyIndex, job.Version = new(uint64(40)), new(uint64(40)), new(uint64(1))
	updated := *current
	updated.ModifyIndex, updated.Job = 41, &job
	updated.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: new(false), Timestamp: at, ModifyIndex: 41}
	current = &updated

	got, meta, err := client.Info(allocID, nil)
	if err != nil || meta.LastIndex != 41 || *got.Job.Version != 1 || *got.Job.JobModifyIndex != 40 {
		t.Errorf("info = %+v, %v; want version 1 of the job at index 41", meta, err)
	}
	want := map[string]any{"Canary": false, "Healthy": false, "ModifyIndex": 41.0,
		"Timestamp": "2026-11-21T10:00:00.000000005Z"}
	encoded := must.Get(allocations.Encode(current))(t)
	var whole map[string]any
	must.OK(t, json.Unmarshal(encoded, &whole))
	if diff := cmp.Diff(want, whole["DeploymentStatus"]); diff != "" {
		t.Errorf("DeploymentStatus: -want +got\n%s", diff)
	}
	list, _, err := client.List(nil)
	if err != nil || list[0].JobVersion != 1 || list[0].DeploymentStatus == nil || *list[0].DeploymentStatus.Healthy {
		t.Errorf("list = %+v, %v; want version 1, not healthy", list, err)
	}
}
