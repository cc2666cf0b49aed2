package handlers_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
	"taskapi/handlers/jobs"
	"taskapi/internal/must"
)

// another returns what an allocation of newAlloc is with a change.
func another(t *testing.T, change func(*api.Allocation)) *fakeAlloc {
	t.Helper()
	alloc := newAlloc(t)
	current := *alloc.snapshot()
	change(&current)
	alloc.snapshot = func() *api.Allocation { return &current }
	return alloc
}

// TestSDKJobReads: what a task reads of its own job, and nothing of another.
func TestSDKJobReads(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute)
	client := s.sdk(t, goodToken).Jobs()

	allocs, meta, err := client.Allocations("demo", true, nil)
	if err != nil || len(allocs) != 1 || allocs[0].ID != allocID || meta.LastIndex != 34 {
		t.Errorf("allocations = %v, %+v, %v", allocs, meta, err)
	}
	summary, _, err := client.Summary("demo", nil)
	if err != nil || summary.JobID != "demo" || summary.Summary["web"].Running != 1 || summary.Children == nil {
		t.Errorf("summary = %+v, %v", summary, err)
	}
	scale, _, err := client.ScaleStatus("demo", nil)
	if got := scale.TaskGroups["web"]; err != nil || got.Desired != 1 || got.Placed != 1 || got.Running != 1 ||
		scale.JobStopped {
		t.Errorf("scale = %+v, %v", scale, err)
	}
	if list, _, err := client.Deployments("demo", true, nil); err != nil || len(list) != 0 {
		t.Errorf("deployments = %v, %v", list, err)
	}
	if latest, _, err := client.LatestDeployment("demo", nil); err != nil || latest != nil {
		t.Errorf("latest deployment = %v, %v", latest, err)
	}
	evals, _, err := client.Evaluations("demo", nil)
	if err != nil || len(evals) != 1 || evals[0].ID != anyEval {
		t.Errorf("evaluations = %v, %v; want the one that placed it", evals, err)
	}

	for name, call := range map[string]func() error{
		"summary":     func() error { _, _, err := client.Summary("other", nil); return err },
		"scale":       func() error { _, _, err := client.ScaleStatus("other", nil); return err },
		"services":    func() error { _, _, err := client.Services("other", nil); return err },
		"deregister":  func() error { _, _, err := client.Deregister("other", false, nil); return err },
		"namespace":   func() error { _, _, err := client.Summary("demo", &api.QueryOptions{Namespace: "prod"}); return err },
		"of a prefix": func() error { _, _, err := client.Summary("dem", nil); return err },
	} {
		err := call()
		if unexpected, ok := errors.AsType[api.UnexpectedResponseError](err); !ok || unexpected.StatusCode() != 404 ||
			unexpected.Body() != "job not found" {
			t.Errorf("%s of another job = %v, want 404", name, err)
		}
	}
	if latest, _, err := client.LatestDeployment("other", nil); latest != nil || err != nil {
		t.Errorf("deployment of another job = %+v, %v; want none, as in Nomad", latest, err)
	}
	_, _, _, err = client.Versions("other", true, nil)
	wantSDKError(t, err, 404, "job versions not found")
	_, _, err = s.sdk(t, operator).Jobs().Submission("other", 1, nil)
	wantSDKError(t, err, 404, "job source not found")
	for name, list := range map[string]func() (int, error){
		"allocations": func() (int, error) { list, _, err := client.Allocations("other", true, nil); return len(list), err },
		"evaluations": func() (int, error) { list, _, err := client.Evaluations("other", nil); return len(list), err },
	} {
		if n, err := list(); n != 0 || err != nil {
			t.Errorf("%s of another job = %d, %v; want none, as in Nomad", name, n, err)
		}
	}
}

// TestScaleOfWhatEnds: what is to stop is not desired, and what has ended is not placed.
func TestScaleOfWhatEnds(t *testing.T) {
	alloc := another(t, func(a *api.Allocation) {
		a.DesiredStatus, a.ClientStatus = "stop", "complete"
		a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: new(false)}
	})
	client := newServer(t, alloc).sdk(t, goodToken).Jobs()
	scale, _, err := client.ScaleStatus("demo", nil)
	want := api.TaskGroupScaleStatus{Unhealthy: 1}
	if err != nil || !scale.JobStopped || !cmp.Equal(scale.TaskGroups["web"], want) {
		t.Errorf("scale = %+v, %v; want nothing desired, placed or running", scale, err)
	}
	if job, _, err := client.Info("demo", nil); err != nil || !*job.Stop {
		t.Errorf("job = %+v, %v; want it stopped", job, err)
	}
}

// TestSDKVersions: every version that is kept, what each changed, and the text that it came from.
func TestSDKVersions(t *testing.T) {
	s := newServer(t, another(t, func(a *api.Allocation) {
		job := *a.Job
		job.Version = new(uint64(2))
		a.Job = &job
	}), everyRoute)
	client := s.sdk(t, goodToken).Jobs()
	versions, diffs, _, err := client.Versions("demo", true, nil)
	if err != nil || len(versions) != 2 || *versions[0].Version != 2 || *versions[0].Status != "running" ||
		*versions[1].Version != 1 {
		t.Fatalf("versions = %+v, %v", versions, err)
	}
	for _, v := range versions { // which nomad job history does without asking
		if v.SubmitTime == nil || v.Stable == nil || v.Version == nil {
			t.Errorf("version %+v lacks its time, number or stability", v)
		}
	}
	if len(diffs) != 1 || diffs[0].Fields[0].New != "earlier to latest" {
		t.Errorf("diffs = %+v, want what the second has changed", diffs)
	}
	_, diffs, _, err = client.VersionsOpts("demo", &api.VersionsOptions{Diffs: true, DiffVersion: new(uint64(2))}, nil)
	if err != nil || len(diffs) != 1 || diffs[0].Fields[0].New != "latest to earlier" {
		t.Errorf("diffs with version 2 = %+v, %v", diffs, err)
	}
	_, _, _, err = client.VersionsOpts("demo", &api.VersionsOptions{Diffs: true, DiffVersion: new(uint64(9))}, nil)
	wantSDKError(t, err, 404, "job versions not found")
	_, _, _, err = client.VersionsOpts("demo", &api.VersionsOptions{Diffs: true, DiffTag: "x"}, nil)
	wantSDKError(t, err, 400, "diff_tag names no version: versions have no tags here; use diff_version")

	_, _, err = client.Submission("demo", 1, nil)
	wantSDKError(t, err, 403, "Permission denied")
	client = s.sdk(t, operator).Jobs()
	submission, _, err := client.Submission("demo", 1, nil)
	if err != nil || submission.Source != "earlier" || submission.Format != "hcl2" {
		t.Errorf("submission = %+v, %v", submission, err)
	}
	_, _, err = client.Submission("demo", 7, nil)
	wantSDKError(t, err, 404, "job source not found")
	_, _, err = newServer(t, newAlloc(t)).sdk(t, operator).Jobs().Submission("demo", 0, nil)
	wantSDKError(t, err, 404, "job source not found")
}

// TestRevert registers an earlier version, with its text, unless the present one is not what the client thinks it is.
func TestRevert(t *testing.T) {
	var got []string
	register := &fakeJobs{register: func(_ context.Context, job *api.Job, submission *api.JobSubmission,
		allowed jobs.Allowed) (jobs.Registration, error) {
		got = append(got, *job.Name+" "+submission.Source)
		if !allowed.Replace {
			return jobs.Registration{}, apierror.New(apierror.Conflict, "not forced")
		}
		return jobs.Registration{Index: 40}, nil
	}}
	s := newServer(t, newAlloc(t), everyRoute, func(c *handlers.Config) { c.Jobs = register })
	client := s.sdk(t, operator).Jobs()
	answer, _, err := client.Revert("demo", 1, nil, nil, "", "")
	if err != nil || answer.JobModifyIndex != 40 || answer.EvalID == "" {
		t.Errorf("revert = %+v, %v", answer, err)
	}
	if _, _, err := client.Revert("demo", 1, new(uint64(0)), nil, "", ""); err != nil { // the recorded job's version
		t.Error(err)
	}
	_, _, err = client.Revert("demo", 1, new(uint64(7)), nil, "", "")
	wantSDKError(t, err, 409, "Current job has version 0; enforcing version 7")
	_, _, err = client.Revert("demo", 9, nil, nil, "", "")
	wantSDKError(t, err, 404, `job "demo" at version 9 not found`)
	_, _, err = client.Revert("demo", 2, nil, nil, "", "")
	wantSDKError(t, err, 400, "can't revert to version 2: it is the present one")
	if gentle := s.do(t, "PUT", "/v1/job/demo/revert?force=false", operator,
		`{"JobVersion":1}`); gentle.Body != "not forced" {
		t.Errorf("without force = %+v", gentle)
	}
	if want := []string{"earlier earlier", "earlier earlier", "earlier earlier"}; !slices.Equal(got, want) {
		t.Errorf("registered %q, want %q", got, want)
	}
	if refused := s.do(t, "PUT", "/v1/job/demo/revert", goodToken, `{"JobVersion":1}`); refused.Status != 403 {
		t.Errorf("revert by a task = %d, want 403", refused.Status)
	}
}

// TestPurgeIsRecorded: the operator may stop a job while the audit log can't be written, and not remove what it has
// left.
func TestPurgeIsRecorded(t *testing.T) {
	alloc, stops := newAlloc(t), 0
	alloc.stop = func(context.Context, bool) error { stops++; return nil }
	alloc.collect = func(context.Context) error { t.Error("removed without a record"); return nil }
	s := newServer(t, alloc)
	s.mu.Lock()
	s.full = true
	s.mu.Unlock()
	_, _, err := s.sdk(t, operator).Jobs().Deregister("demo", true, nil)
	wantSDKError(t, err, 503, auth.ErrAudit.Error())
	if stops != 0 {
		t.Error("what is refused was half done: the allocation stops")
	}
	if _, _, err := s.sdk(t, operator).Jobs().Deregister("demo", false, nil); err != nil || stops != 1 {
		t.Errorf("stopped %d times: %v", stops, err)
	}
}

// TestSDKDeregister begins to stop the allocation, for those who may.
func TestSDKDeregister(t *testing.T) {
	alloc, stops := newAlloc(t), []bool{}
	alloc.stop = func(_ context.Context, hurry bool) error { stops = append(stops, hurry); return nil }
	s := newServer(t, alloc)
	client := s.sdk(t, goodToken)
	id, _, err := client.Jobs().Deregister("demo", false, nil)
	must.OK(t, err)
	if eval, _, err := client.Evaluations().Info(id, nil); err != nil || eval.TriggeredBy != "job-deregister" ||
		eval.Status != "complete" {
		t.Errorf("evaluation = %+v, %v", eval, err)
	}
	if _, _, err := client.Jobs().DeregisterOpts("demo", &api.DeregisterOptions{NoShutdownDelay: true}, nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(stops, []bool{false, true}) {
		t.Errorf("stopped %v, want once with its shutdown delay and once without", stops)
	}
	collected, fault := 0, interfaces.ErrNotTerminal
	alloc.collect = func(context.Context) error { collected++; return fault }
	if _, _, err := client.Jobs().Deregister("demo", true, nil); err != nil || collected != 1 {
		t.Errorf("purge of one that runs: %v, %d removals tried; want it stopped", err, collected)
	}
	fault = nil
	if _, _, err := client.Jobs().Deregister("demo", true, nil); err != nil || collected != 2 {
		t.Errorf("purge of one that has ended: %v, %d removals; want it removed", err, collected)
	}
	fault = errors.New("a fault")
	_, _, err = client.Jobs().Deregister("demo", true, nil)
	wantSDKError(t, err, 500, "internal error")
	collected, stops = 0, nil
	for _, token := range []string{poorToken, readToken} {
		_, _, err = s.sdk(t, token).Jobs().Deregister("demo", true, nil)
		wantSDKError(t, err, 403, "Permission denied")
	}
	if collected > 0 || len(stops) > 0 {
		t.Errorf("for those who may not, %d removals and %d stops; want none", collected, len(stops))
	}
	for query, want := range map[string]string{
		"purge=maybe":             `purge must be true or false, not "maybe"`,
		"no_shutdown_delay=maybe": `no_shutdown_delay must be true or false, not "maybe"`,
	} {
		if got := s.do(t, http.MethodDelete, "/v1/job/demo?"+query, goodToken, ""); got.Status != 400 || got.Body != want {
			t.Errorf("%s = %+v, want 400 %s", query, got, want)
		}
	}
}

// TestSDKEvaluations: lists, counts and one that does nothing.
func TestSDKEvaluations(t *testing.T) {
	s := newServer(t, newAlloc(t))
	client := s.sdk(t, operator)
	id, _, err := client.Jobs().ForceEvaluate("demo", nil)
	must.OK(t, err)
	list, _, err := client.Evaluations().List(nil)
	if err != nil || len(list) != 2 || !slices.ContainsFunc(list, func(e *api.Evaluation) bool { return e.ID == id }) {
		t.Errorf("list = %+v, %v; want it beside the first", list, err)
	}
	for params, want := range map[[2]string]int{{"job", "demo"}: 2, {"job", "other"}: 0, {"status", "complete"}: 2,
		{"status", "blocked"}: 0} {
		options := &api.QueryOptions{Params: map[string]string{params[0]: params[1]}}
		if count, _, err := client.Evaluations().Count(options); err != nil || count.Count != want {
			t.Errorf("count of %v = %+v, %v; want %d", params, count, err, want)
		}
	}
	if count, _, err := client.Evaluations().Count(&api.QueryOptions{Filter: `ID == "` + id + `"`}); err != nil ||
		count.Count != 1 {
		t.Errorf("count with a filter = %+v, %v", count, err)
	}
	_, _, err = client.Jobs().EvaluateWithOpts("demo", api.EvalOptions{ForceReschedule: true}, nil)
	wantSDKError(t, err, 501, "an allocation is not rescheduled here: run the job again when it has failed")
	if err := client.System().GarbageCollect(); err != nil {
		t.Error(err)
	}
	if list, _, err := client.Evaluations().List(nil); err != nil || len(list) != 1 {
		t.Errorf("list = %+v, %v; want the placement alone after gc", list, err)
	}
}

// TestParse: texts and jobs are judged, not registered; an answer says what is wrong with a job, and an error what is
// wrong with a request.
func TestParse(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute)
	client := s.sdk(t, operator).Jobs()
	job, err := client.ParseHCLOpts(&api.JobsParseRequest{JobHCL: "x", Variables: "v"})
	if err != nil || *job.ID != "parsed" || *job.Name != "v" {
		t.Errorf("parse = %+v, %v", job, err)
	}
	_, err = client.ParseHCL("bad", true)
	wantSDKError(t, err, 400, "job.hcl:1:1: not a job")
	_, err = client.ParseHCL("", true)
	wantSDKError(t, err, 400, "Job spec is empty")

	verdict, _, err := client.Validate(&api.Job{ID: new("bad")}, nil)
	if err != nil || !slices.Equal(verdict.ValidationErrors, []string{"one", "three"}) || verdict.Error != "one\nthree" ||
		verdict.Warnings != "two" {
		t.Errorf("validate = %+v, %v", verdict, err)
	}
	if verdict, _, err = client.Validate(&api.Job{ID: new("good")}, nil); err != nil || verdict.Error != "" ||
		!verdict.DriverConfigValidated {
		t.Errorf("validate = %+v, %v", verdict, err)
	}
	for body, want := range map[string]string{`{}`: "Job must be specified", `{"Job":{}}`: "Job must have an ID"} {
		if got := s.do(t, "PUT", "/v1/validate/job", operator, body); got.Status != 400 || got.Body != want {
			t.Errorf("validate %s = %+v, want 400 %s", body, got, want)
		}
	}
	big := `{"JobHCL":"` + strings.Repeat("x", 3<<20) + `"}`
	if got := s.do(t, "POST", "/v1/jobs/parse", operator, big); got.Status != 413 {
		t.Errorf("a text of 3 MB = %d, want 413", got.Status)
	}
	for _, path := range []string{"/v1/jobs/parse", "/v1/validate/job"} {
		if got := s.do(t, "POST", path, goodToken, anyBody); got.Status != 403 {
			t.Errorf("%s by a task = %d, want 403", path, got.Status)
		}
	}
}

// slowParser judges a job once it may.
type slowParser struct {
	fakeParser
	begun, may chan struct{}
}

func (p slowParser) Validate(ctx context.Context, job *api.Job) (jobs.Validation, error) {
	p.begun <- struct{}{}
	<-p.may
	return p.fakeParser.Validate(ctx, job)
}

// TestParsingIsDecidedAgain: who has waited for another job to be judged, and is not authorized any more, gets no
// answer.
func TestParsingIsDecidedAgain(t *testing.T) {
	for path, body := range map[string]string{"/v1/jobs/parse": `{"JobHCL":"x"}`,
		"/v1/validate/job": `{"Job":{"ID":"good"}}`} {
		synctest.Test(t, func(t *testing.T) {
			parser := slowParser{begun: make(chan struct{}), may: make(chan struct{})}
			var revoked atomic.Bool
			dial, stop := bubbled(t, newAlloc(t), func(c *handlers.Config) {
				c.Parser, c.Authenticator = parser, revocable{c.Authenticator, &revoked}
			})
			defer stop()
			first, second := dial(), dial()
			defer first.Close()
			defer second.Close()
			go func() {
				_, _ = io.WriteString(first, head("PUT", "/v1/validate/job", operator, `{"Job":{"ID":"good"}}`))
			}()
			<-parser.begun
			go func() { _, _ = io.WriteString(second, head("PUT", path, operator, body)) }()
			synctest.Wait() // it waits for its turn
			revoked.Store(true)
			close(parser.may)
			if got := answer(t, first); got != http.StatusOK {
				t.Errorf("the first = %d, want 200", got)
			}
			if got := answer(t, second); got != http.StatusForbidden {
				t.Errorf("%s after its wait = %d, want 403", path, got)
			}
		})
	}
}

// TestLastingRevert: while an earlier version is being registered, the socket goes on making long answers.
func TestLastingRevert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		register := &fakeJobs{register: func(
			ctx context.Context, _ *api.Job, _ *api.JobSubmission, _ jobs.Allowed,
		) (jobs.Registration, error) {
			select {
			case <-end:
			case <-ctx.Done():
			}
			return jobs.Registration{Index: 40}, nil
		}}
		dial, stop := bubbled(t, newAlloc(t), everyRoute, func(c *handlers.Config) { c.Jobs = register })
		defer stop()
		a := asker{t, dial}
		revert := a.ask("PUT", "/v1/job/demo/revert", "Content-Length: 16\r\n", `{"JobVersion":1}`)
		for _, path := range []string{"/v1/job/demo/versions", "/v1/vars", "/v1/services"} {
			c := a.get(path)
			_ = c.SetReadDeadline(time.Now().Add(time.Minute)) // a pipe takes it
			if got := answer(t, c); got != http.StatusOK {
				t.Errorf("GET %s meanwhile = %d", path, got)
			}
		}
		close(end)
		if got := answer(t, revert); got != http.StatusOK {
			t.Errorf("revert = %d", got)
		}
	})
}
