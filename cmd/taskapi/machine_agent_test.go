package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/jobspec"
	"taskapi/identity"
	"taskapi/internal/must"
)

// machineAgent is taskapi agent as a process, with a data directory of its own.
type machineAgent struct {
	taskapiProcess
	t    *testing.T
	data string

	once sync.Once
	sdk  *api.Client // see client
}

// startAgent starts the agent of a data directory. At the end all allocations are stopped.
func startAgent(t *testing.T, data string, flags ...string) *machineAgent {
	t.Helper()
	return startAgentBy(t, data, self(t), append([]string{"agent", "--data-dir", data}, flags...)...)
}

func startAgentBy(t *testing.T, data, program string, args ...string) *machineAgent {
	t.Helper()
	p := startCommand(t, program, args...)
	a := &machineAgent{taskapiProcess: p, t: t, data: data}
	t.Cleanup(func() {
		_ = a.Process.Kill() // it may have ended
		_ = a.Wait()
		if t.Failed() {
			t.Log(a.out.String())
		}
		a.taskapi("stop", "--all", "--now")
	})
	until(t, a.taskapiProcess, "listens", func() bool { return strings.Contains(a.out.String(), "listening on ") })
	return a
}

// taskapi runs a command on the agent's data directory.
func (a *machineAgent) taskapi(args ...string) string {
	a.t.Helper()
	cmd := exec.Command(self(a.t), append(args, "--data-dir", a.data)...)
	cmd.Env = append(os.Environ(), "TASKAPI_TEST_MAIN=1")
	out, _ := cmd.CombinedOutput() // what it prints is looked at
	return string(out)
}

// sdk returns Nomad's SDK on an address, with a token.
func sdk(t *testing.T, address, token string) *api.Client {
	t.Helper()
	client := must.Get(api.NewClient(&api.Config{Address: address, SecretID: token}))(t)
	t.Cleanup(client.Close)
	return client
}

// client returns the SDK on the machine's socket.
func (a *machineAgent) client() *api.Client {
	a.once.Do(func() {
		client, err := sdkOn(filepath.Join(a.data, "operator.sock"), filepath.Join(a.data, "operator.token"))
		if a.sdk = client; err != nil {
			a.t.Error(err)
		}
	})
	return a.sdk
}

func parsedJob(t *testing.T, text string) *api.Job {
	t.Helper()
	job := must.Get(jobspec.Parse(jobspec.Config{Filename: "job.nomad.hcl", Body: []byte(text), AsWritten: true,
		Audience: identity.DefaultAudience}))(t)
	return job
}

// change makes a change of a job, again while another one is under way.
func (a *machineAgent) change(do func() error) {
	a.t.Helper()
	until(a.t, a.taskapiProcess, "changes a job", func() bool {
		err := do()
		if err != nil && answeredStatus(err) != http.StatusTooManyRequests {
			a.t.Fatal(err)
		}
		return err == nil
	})
}

// register registers a job and waits until its evaluation is complete.
func (a *machineAgent) register(job *api.Job) {
	a.t.Helper()
	var made *api.JobRegisterResponse
	a.change(func() (err error) {
		made, _, err = a.client().Jobs().Register(job, nil)
		return err
	})
	until(a.t, a.taskapiProcess, "carries out a registration", func() bool {
		e, _, err := a.client().Evaluations().Info(made.EvalID, nil)
		if err != nil || e.Status == api.EvalStatusFailed {
			a.t.Fatalf("evaluation %+v, %v", e, err)
		}
		return e.Status == api.EvalStatusComplete
	})
}

// allocs returns the allocations of a job by status, each with its ID.
func (a *machineAgent) allocs(job string) (found []string) {
	a.t.Helper()
	all := asked(a.client().Jobs().Allocations(job, true, nil))(a.t)
	for _, alloc := range all {
		found = append(found, alloc.ClientStatus+" "+alloc.ID)
	}
	slices.Sort(found)
	return found
}

func answeredStatus(err error) int {
	if answered, ok := errors.AsType[api.UnexpectedResponseError](err); ok {
		return answered.StatusCode()
	}
	return 0
}

// TestAgentRunsJobs: over the machine's socket, a job is registered, listed, followed, asked and stopped. It is
// registered once, however often and by how many at a time.
func TestAgentRunsJobs(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	job := parsedJob(t, pairJob)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			_, _, err := a.client().Jobs().Register(job, nil)
			if err != nil && answeredStatus(err) != http.StatusTooManyRequests { // the other one is under way
				t.Error(err)
			}
		})
	}
	both.Wait()
	a.register(job)
	before := a.allocs("pair")
	if len(before) != 2 || !strings.HasPrefix(before[0], "running ") || !strings.HasPrefix(before[1], "running ") {
		t.Fatalf("the job has the allocations %q, want two that run", before)
	}
	client := a.client()
	jobs, meta, err := client.Jobs().List(nil)
	if err != nil || len(jobs) != 1 || jobs[0].Status != "running" || jobs[0].JobSummary.Summary["g"].Running != 2 {
		t.Fatalf("jobs %+v, %v", jobs, err)
	}

	// what runs beside the agent is seen, and wakes a query
	waited := make(chan error, 1)
	go func() {
		_, next, err := client.Allocations().List(&api.QueryOptions{WaitIndex: meta.LastIndex})
		if err == nil && next.LastIndex <= meta.LastIndex {
			err = fmt.Errorf("the index went from %d to %d", meta.LastIndex, next.LastIndex)
		}
		waited <- err
	}()
	file := jobFile(t, strings.Replace(pairJob, "pair", "other", 1))
	if out := a.taskapi("run", "-d", file); strings.Contains(out, "taskapi:") {
		t.Fatal(out)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	until(t, a.taskapiProcess, "sees what runs beside it", func() bool { return len(a.allocs("other")) == 1 })

	id := strings.Fields(before[0])[1]
	alloc := asked(client.Allocations().Info(id, nil))(t)
	var out bytes.Buffer
	code, err := client.Allocations().Exec(t.Context(), alloc, "t", false, []string{"/bin/echo", "hi"},
		strings.NewReader(""), &out, &out, nil, nil)
	if err != nil || code != 0 || out.String() != "hi\n" {
		t.Errorf("exec: %d, %v, %q", code, err, &out)
	}

	// the agent is killed, and another one knows everything
	kill(t, a.taskapiProcess)
	b := startAgent(t, a.data)
	if after := b.allocs("pair"); !slices.Equal(before, after) {
		t.Errorf("the allocations were %q, and are %q", before, after)
	}
	if _, again, err := b.client().Jobs().List(nil); err != nil || again.LastIndex <= meta.LastIndex {
		t.Errorf("the index went from %d to %+v, %v", meta.LastIndex, again, err)
	}

	asked(b.client().Jobs().Deregister("pair", false, nil))(t)
	until(t, b.taskapiProcess, "stops the job", func() bool {
		return !strings.Contains(strings.Join(b.allocs("pair"), " "), "running")
	})
	until(t, b.taskapiProcess, "reads an allocation that has ended", func() bool {
		files, _, err := b.client().AllocFS().List(alloc, "/alloc/logs", nil)
		return err == nil && len(files) > 0
	})
	if err := b.client().Allocations().Restart(alloc, "", nil); answeredStatus(err) != http.StatusConflict {
		t.Errorf("a restart of what has ended: %v", err)
	}
	asked(b.client().Jobs().Deregister("pair", true, nil))(t)
	until(t, b.taskapiProcess, "removes a purged job", func() bool { return len(b.allocs("pair")) == 0 })
	if _, _, err := b.client().Jobs().Info("pair", nil); answeredStatus(err) != http.StatusNotFound {
		t.Errorf("a purged job: %v", err)
	}
}

// TestAgentOnWhatHasEnded: an allocation that no process runs uses nothing, its job has no services, and its evaluation
// says what was done.
func TestAgentOnWhatHasEnded(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	a.taskapi("run", jobFile(t, `job "done" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}`))
	client := a.client()
	allocs := asked(client.Jobs().Allocations("done", true, nil))(t)
	usage, err := client.Allocations().Stats(&api.Allocation{ID: allocs[0].ID}, nil)
	if err != nil || usage.Tasks["t"] == nil || len(usage.Tasks["t"].Pids) > 0 || usage.Timestamp != 0 {
		t.Errorf("it uses %+v, %v", usage, err)
	}
	if services, _, err := client.Jobs().Services("done", nil); err != nil || len(services) != 0 {
		t.Errorf("it has the services %v, %v", services, err)
	}
	placed := asked(client.Evaluations().Info(allocs[0].EvalID, nil))(t)
	if placed.PlanAnnotations == nil || placed.PlanAnnotations.DesiredTGUpdates["g"].Place != 1 || placed.Type != "batch" {
		t.Errorf("it was placed by the evaluation %+v", placed)
	}
	over := asked(client.Allocations().Info(allocs[0].ID, nil))(t)
	stop := must.Get(client.Allocations().Stop(over, nil))(t)
	if made, _, err := client.Evaluations().Info(stop.EvalID, nil); err != nil || made.TriggeredBy != "alloc-stop" {
		t.Errorf("its stop made the evaluation %+v, %v", made, err)
	}
	if err := client.Allocations().Signal(over, nil, "t", "SIGHUP"); err == nil ||
		!strings.Contains(err.Error(), "Task not running") {
		t.Errorf("a signal to its task: %v", err)
	}
}

// TestAgentIsOne: a second agent of a data directory ends with exit code 1, since it may start later.
func TestAgentIsOne(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	second := startCommand(t, self(t), "agent", "--data-dir", a.data)
	_ = second.Wait() // its exit code says it
	out := second.out.String()
	if code := second.ProcessState.ExitCode(); code != 1 || !strings.Contains(out, "another taskapi agent") {
		t.Errorf("a second agent: exit code %d, %s", code, out)
	}
	until(t, a.taskapiProcess, "says where it listens", func() bool {
		return strings.Contains(a.out.String(), "listening on "+a.data+"/operator.sock\n")
	})
}

// TestAgentRefusesJobs: what can't run here is refused with the reason, and nothing starts.
func TestAgentRefusesJobs(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	docker := strings.Replace(pairJob, "raw_exec", "docker", 1)
	_, _, err := a.client().Jobs().Register(parsedJob(t, docker), nil)
	if answeredStatus(err) != http.StatusBadRequest || !strings.Contains(err.Error(), "docker") {
		t.Errorf("a job for docker: %v", err)
	}
	twice := strings.Replace(pairJob, "task \"t\"", "network {\n      port \"p\" { static = 9 }\n    }\n    task \"t\"", 1)
	_, _, err = a.client().Jobs().Register(parsedJob(t, twice), nil)
	if answeredStatus(err) != http.StatusBadRequest || !strings.Contains(err.Error(), `(job file: group "g": port "p": `) {
		t.Errorf("a job of two allocations with one port: %v", err)
	}
	plan, _, err := a.client().Jobs().Plan(parsedJob(t, pairJob), true, nil)
	if err != nil || plan.Annotations.DesiredTGUpdates["g"].Place != 2 {
		t.Errorf("plan %+v, %v", plan, err)
	}
	if all, _, err := a.client().Allocations().List(nil); err != nil || len(all) != 0 {
		t.Errorf("%d allocations have started, %v", len(all), err)
	}
}

// TestAgentRefusesLaxerAllocations: a job that was started with laxer settings than the agent's gets no version and no
// child from the agent. Once it has been stopped, the agent starts it with its own settings.
func TestAgentRefusesLaxerAllocations(t *testing.T) {
	t.Parallel()
	data := shortDir(t)
	flags, setting := []string{"--policy", "nomad"}, "policy"
	if os.Geteuid() == 0 {
		flags, setting = append(flags, "--isolate-users"), "isolate_users"
		must.OK(t, os.Chmod(data, 0o711))
	}
	a := startAgent(t, data, flags...)
	client := a.client()
	a.taskapi("run", "--all", "-d", jobFile(t, pairJob))
	a.taskapi("run", "-d", jobFile(t, parentJob))
	until(t, a.taskapiProcess, "sees both jobs", func() bool { return len(a.allocs("pair"))+len(a.allocs("resize")) == 3 })
	before := sleeping(t, data)

	job := parsedJob(t, pairJob)
	job.TaskGroups[0].Update = &api.UpdateStrategy{MaxParallel: new(0)}
	job.TaskGroups[0].Tasks[0].Env = map[string]string{"VERSION": "1"}
	_, _, registered := client.Jobs().Register(job, nil)
	_, _, scaled := client.Jobs().Scale("pair", "g", new(3), "", false, nil, nil)
	_, _, dispatched := client.Jobs().Dispatch("resize", nil, nil, "", nil)
	for what, err := range map[string]error{"a version": registered, "a count": scaled, "a child": dispatched} {
		if answeredStatus(err) != http.StatusConflict || !strings.Contains(err.Error(), " a laxer setting "+setting+" ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if now := sleeping(t, data); !slices.Equal(before, now) {
		t.Errorf("the processes were %q, and are %q", before, now)
	}

	asked(client.Jobs().Deregister("pair", false, nil))(t)
	a.register(job)
	job.TaskGroups[0].Count = new(3)
	a.register(job)
	if now := sleeping(t, data); len(now) != 3 {
		t.Errorf("the job has the processes %q, want 3", now)
	}
	for _, process := range sleeping(t, data) {
		pid, _, _ := strings.Cut(process, " ")
		if info := must.Get(os.Stat("/proc/" + pid))(t); os.Geteuid() == 0 && info.Sys().(*syscall.Stat_t).Uid == 0 {
			t.Errorf("process %s runs as root", process)
		}
	}
}

// TestAgentsSettingsFile: an allocation that an update adds has the settings of the agent's file. An agent refuses to
// update allocations that would lose settings of another file which are no laxer than its own.
func TestAgentsSettingsFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "taskapi.hcl")
	must.OK(t, os.WriteFile(file, []byte("policy            = \"nomad\"\nallow_shared_user = true\n"), 0o600))
	a := startAgent(t, shortDir(t), "--config", file)
	job := parsedJob(t, pairJob)
	a.register(job)
	job.TaskGroups[0].Count = new(3)
	a.register(job)
	all := a.allocs("pair")
	if len(all) != 3 {
		t.Errorf("the job has the allocations %q, want 3", all)
	}
	for _, alloc := range all {
		_, id, _ := strings.Cut(alloc, " ")
		record := must.Get(os.ReadFile(filepath.Join(a.data, "allocs", id, "settings.json")))(t)
		if !strings.Contains(string(record), `"nomad"`) {
			t.Errorf("allocation %s has the settings %s", id, record)
		}
	}
	kill(t, a.taskapiProcess)
	next := startAgent(t, a.data, "--policy", "nomad", "-o", "allow_shared_user=true")
	_, _, err := next.client().Jobs().Scale("pair", "g", new(4), "", false, nil, nil)
	if answeredStatus(err) != http.StatusConflict || !strings.Contains(err.Error(), " a laxer setting policy ") {
		t.Errorf("without the file: %v", err)
	}
}

// TestAgentRunsWhatStops: a job that is registered while its allocations are being stopped runs when they have ended.
// The answer comes when the work outlives the agent, and until then another registration is told to wait.
func TestAgentRunsWhatStops(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	job := parsedJob(t, pairJob)
	job.TaskGroups[0].Tasks[0].ShutdownDelay = 7 * time.Second // longer than a registration that has begun is waited for
	a.register(job)
	client := a.client()
	asked(client.Jobs().Deregister("pair", false, nil))(t)
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i := range errs {
		both.Go(func() {
			version := *job
			version.Meta = map[string]string{"version": strconv.Itoa(i)}
			_, _, errs[i] = client.Jobs().Register(&version, nil)
		})
	}
	both.Wait()
	kill(t, a.taskapiProcess)
	answered := slices.Index(errs, nil)
	if answered < 0 || answeredStatus(errs[1-answered]) != http.StatusTooManyRequests {
		t.Fatalf("two registrations at a time: %v", errs)
	}
	next := startAgent(t, a.data)
	until(t, next.taskapiProcess, "runs the job that was registered", func() bool {
		now, _, err := next.client().Jobs().Info("pair", nil)
		return err == nil && now.Meta["version"] == strconv.Itoa(answered) &&
			strings.Count(strings.Join(next.allocs("pair"), " "), "running") == 2
	})
}

// TestAgentStopsARegistration: nothing starts after a stop of a job has been answered, also while a registration of the
// job starts or updates its allocations, and when an earlier agent has begun that.
func TestAgentStopsARegistration(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"starts", "updates", "starts by an earlier agent", "updates by an earlier agent"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t, shortDir(t))
			job := parsedJob(t, strings.Replace(pairJob, "count = 2", "count = 12", 1))
			job.TaskGroups[0].Update = &api.UpdateStrategy{MaxParallel: new(1)}
			begun := func() bool { return len(sleeping(t, a.data)) > 0 }
			if strings.HasPrefix(what, "updates") {
				job.TaskGroups[0].Count = new(3)
				a.register(job)
				before := sleeping(t, a.data)
				begun = func() bool { return !slices.Equal(before, sleeping(t, a.data)) }
				job.TaskGroups[0].Tasks[0].Env = map[string]string{"VERSION": "1"}
			}
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				_, _, _ = a.client().Jobs().Register(job, nil) // it is stopped, or the agent is killed
			}()
			until(t, a.taskapiProcess, "carries out a registration", begun)
			now := a
			if strings.HasSuffix(what, "earlier agent") {
				kill(t, a.taskapiProcess)
				now = startAgent(t, a.data)
			}
			asked(now.client().Jobs().Deregister("pair", false, nil))(t)
			stopped := now.allocs("pair")
			<-answered
			until(t, now.taskapiProcess, "ends all allocations", func() bool {
				return len(processesOf(t, a.data)) == 0 && !strings.Contains(strings.Join(now.allocs("pair"), " "), "ing ")
			})
			all := asked(now.client().Jobs().Allocations("pair", true, nil))(t)
			if len(all) != len(stopped) {
				t.Errorf("the job had %d allocations when it was stopped, and has %d", len(stopped), len(all))
			}
			for _, alloc := range all {
				if alloc.DesiredStatus != api.AllocDesiredStatusStop {
					t.Errorf("%s was not stopped: %s, %s", alloc.Name, alloc.ClientStatus, alloc.ClientDescription)
				}
			}
		})
	}
}

// TestAgentsPurgeOutlivesIt: what is to be removed when it has ended is removed, also when the agent is killed
// meanwhile.
func TestAgentsPurgeOutlivesIt(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	job := parsedJob(t, pairJob)
	job.TaskGroups[0].Tasks[0].ShutdownDelay = time.Second
	a.register(job)
	before := a.allocs("pair")
	asked(a.client().Jobs().Deregister("pair", true, nil))(t)
	kill(t, a.taskapiProcess)
	until(t, a.taskapiProcess, "removes the job", func() bool {
		return !slices.ContainsFunc(before, func(alloc string) bool {
			_, err := os.Stat(filepath.Join(a.data, "allocs", strings.Fields(alloc)[1]))
			return err == nil
		})
	})
}

// TestAgentsRegistrationOutlivesIt: all allocations of a job get the new version, also when the agent is killed after
// the first one has got it.
func TestAgentsRegistrationOutlivesIt(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	job := parsedJob(t, pairJob)
	job.TaskGroups[0].Update = &api.UpdateStrategy{MaxParallel: new(1), MinHealthyTime: new(time.Second)}
	a.register(job)
	updated := func(a *machineAgent) (n int) {
		all, _, err := a.client().Jobs().Allocations("pair", false, nil)
		for _, alloc := range all {
			if err == nil && alloc.JobVersion == 1 && alloc.ClientStatus == "running" {
				n++
			}
		}
		return n
	}
	job.TaskGroups[0].Tasks[0].Env = map[string]string{"VERSION": "1"}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _, _ = a.client().Jobs().Register(job, nil) // the agent may be killed before it answers
	}()
	until(t, a.taskapiProcess, "updates an allocation", func() bool { return updated(a) > 0 })
	kill(t, a.taskapiProcess)
	<-answered
	next := startAgent(t, a.data)
	until(t, next.taskapiProcess, "has both allocations of the new version", func() bool { return updated(next) == 2 })
}

// TestAgentEnforcesTheIndexInTurn: of two registrations made from one version of a job, the later one is refused, also
// when it comes before an allocation has the version of the earlier one.
func TestAgentEnforcesTheIndexInTurn(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	job := parsedJob(t, pairJob)
	job.TaskGroups[0].Update = &api.UpdateStrategy{MaxParallel: new(0)}
	job.TaskGroups[0].Tasks[0].ShutdownDelay = 7 * time.Second // longer than an answer waits for the work
	a.register(job)
	now := asked(a.client().Jobs().Info("pair", nil))(t)
	job.TaskGroups[0].Tasks[0].Env = map[string]string{"VERSION": "1"}
	asked(a.client().Jobs().EnforceRegister(job, *now.JobModifyIndex, nil))(t)
	job.TaskGroups[0].Tasks[0].Env["VERSION"] = "2"
	until(t, a.taskapiProcess, "refuses the second registration", func() bool {
		_, _, err := a.client().Jobs().EnforceRegister(job, *now.JobModifyIndex, nil)
		if err == nil {
			t.Fatal("it carries out both registrations")
		}
		return answeredStatus(err) == http.StatusConflict && strings.Contains(err.Error(), "job modify index")
	})
}

// TestAgentTellsTheJobsIndex: the answer to a registration that has been carried out has the job's index, so the next
// one can be made from it.
func TestAgentTellsTheJobsIndex(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	job := parsedJob(t, pairJob)
	job.TaskGroups[0].Update = &api.UpdateStrategy{MaxParallel: new(0)}
	var made *api.JobRegisterResponse
	until(t, a.taskapiProcess, "carries out a registration before it answers", func() bool {
		made = asked(a.client().Jobs().Register(job, nil))(t)
		return asked(a.client().Evaluations().Info(made.EvalID, nil))(t).Status == api.EvalStatusComplete
	})
	if now := asked(a.client().Jobs().Info("pair", nil))(t); made.JobModifyIndex != *now.JobModifyIndex {
		t.Errorf("the answer has the index %d, the job %d", made.JobModifyIndex, *now.JobModifyIndex)
	}
	job.TaskGroups[0].Tasks[0].Env = map[string]string{"VERSION": "1"}
	asked(a.client().Jobs().EnforceRegister(job, made.JobModifyIndex, nil))(t)
}

// asked returns what a call of the SDK is for, or ends the test.
func asked[T, M any](value T, _ M, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must.OK(t, err)
		return value
	}
}

// TestAgentsNamespaces: a request that names a job without a namespace means the job of the default one.
func TestAgentsNamespaces(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	all := &api.QueryOptions{Namespace: "*"}
	for _, namespace := range []string{"other", "default", "third"} {
		job := parsedJob(t, strings.Replace(pairJob, "count = 2", "", 1))
		job.Namespace = &namespace
		plan, _, err := a.client().Jobs().Plan(job, true, nil)
		if err != nil || plan.Annotations.DesiredTGUpdates["g"].Place != 1 {
			t.Errorf("plan %+v, %v", plan, err)
		}
		a.register(job)
	}
	if job, _, err := a.client().Jobs().Info("pair", nil); err != nil || *job.Namespace != "default" {
		t.Errorf("without a namespace, the job is %+v, %v", job, err)
	}
	client := a.client()
	if allocs, _, err := client.Jobs().Allocations("pair", true, nil); err != nil || len(allocs) != 1 ||
		allocs[0].Namespace != "default" {
		t.Errorf("without a namespace, the job has the allocations %+v, %v", allocs, err)
	}
	evals, _, err := client.Jobs().Evaluations("pair", nil)
	if err != nil || slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.Namespace != "default" }) {
		t.Errorf("without a namespace, the job has the evaluations %+v, %v", evals, err)
	}
	if sum, _, err := client.Jobs().Summary("pair", nil); err != nil || sum.Summary["g"].Running != 1 {
		t.Errorf("without a namespace, the summary is %+v, %v", sum, err)
	}
	if namespaces, _, err := client.Namespaces().List(nil); err != nil || len(namespaces) != 3 {
		t.Errorf("the namespaces are %+v, %v", namespaces, err)
	}
	var statuses []struct {
		ID     string
		Allocs []struct{ ID string }
	}
	if _, err := client.Raw().Query("/v1/jobs/statuses", &statuses, all); err != nil || len(statuses) != 3 ||
		statuses[0].ID != "pair" || len(statuses[0].Allocs) != 1 {
		t.Errorf("the statuses of jobs are %+v, %v", statuses, err)
	}
	for pool, want := range map[string]int{"default": 3, "all": 0} {
		if jobs, _, err := client.NodePools().ListJobs(pool, all); err != nil || len(jobs) != want {
			t.Errorf("the pool %s has the jobs %+v, %v; want %d", pool, jobs, err, want)
		}
	}
	found, _, err := client.Search().FuzzySearch("AIR", contexts.Jobs, all)
	if err != nil || len(found.Matches[contexts.Jobs]) != 3 {
		t.Errorf("the search finds %+v, %v", found, err)
	}
	ids, _, err := client.Search().PrefixSearch("pa", contexts.Jobs, &api.QueryOptions{Namespace: "other"})
	if err != nil || !slices.Equal(ids.Matches[contexts.Jobs], []string{"pair"}) {
		t.Errorf("the search in one namespace finds %+v, %v", ids, err)
	}
	_, _, err = client.Jobs().Info("pair", all)
	if answeredStatus(err) != http.StatusBadRequest || !strings.Contains(err.Error(), "default, other, third") {
		t.Errorf("in all namespaces: %v", err)
	}
	asked(a.client().Jobs().Deregister("pair", true, nil))(t)
	until(t, a.taskapiProcess, "removes one job", func() bool {
		allocs, _, err := client.Allocations().List(all)
		return err == nil && len(allocs) == 2 && allocs[0].DesiredStatus == "run" && allocs[1].DesiredStatus == "run"
	})
	_, _, err = a.client().Jobs().Deregister("pair", false, nil)
	if answeredStatus(err) != http.StatusBadRequest || !strings.Contains(err.Error(), "?namespace=other") {
		t.Errorf("of two others: %v", err)
	}
}

// TestAgentsDoor: the machine's socket takes its own token alone, which no allocation's socket takes.
func TestAgentsDoor(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	a.register(parsedJob(t, strings.Replace(pairJob, "count = 2", "", 1)))
	id := strings.Fields(a.allocs("pair")[0])[1]
	machine := must.Get(os.ReadFile(filepath.Join(a.data, "operator.token")))(t)
	dir := filepath.Join(a.data, "allocs", id)
	alloc := must.Get(os.ReadFile(filepath.Join(dir, "operator.token")))(t)
	for what, c := range map[string]struct{ socket, token string }{
		"an allocation's token on the machine's socket": {filepath.Join(a.data, "operator.sock"), string(alloc)},
		"the machine's token on an allocation's socket": {filepath.Join(dir, "operator.sock"), string(machine)},
		"no token": {filepath.Join(a.data, "operator.sock"), ""},
	} {
		_, _, err := sdk(t, "unix://"+c.socket, c.token).Allocations().List(nil)
		if status := answeredStatus(err); status != http.StatusForbidden && status != http.StatusUnauthorized {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, path := range []string{
		"/v1/allocation/..%2f..%2fother", "/v1/client/fs/cat/" + id + "?path=../../../operator.token",
		"/v1/allocation/00000000-0000-0000-0000-000000000000",
	} {
		if _, err := a.client().Raw().Query(path, nil, nil); answeredStatus(err)/100 != 4 {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestAgentResumes: an allocation whose taskapi was killed gets another one, and its task is the same process. One that
// was stopped stays stopped.
func TestAgentResumes(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	a.register(parsedJob(t, strings.Replace(pairJob, "count = 2", "", 1)))
	a.register(parsedJob(t, strings.NewReplacer("count = 2", "", "pair", "gone").Replace(pairJob)))
	asked(a.client().Jobs().Deregister("gone", false, nil))(t)
	id := strings.Fields(a.allocs("pair")[0])[1]
	until(t, a.taskapiProcess, "stops a job", func() bool { return strings.HasPrefix(a.allocs("gone")[0], "complete ") })
	task := sleeping(t, a.data)
	a.killTaskapi(id)
	until(t, a.taskapiProcess, "resumes the allocation", func() bool {
		_, _, err := a.client().Allocations().Info(id, nil)
		return err == nil
	})
	if now := sleeping(t, a.data); len(now) != 1 || !slices.Equal(task, now) {
		t.Errorf("the tasks were the processes %v, and are %v", task, now)
	}
	if now := a.allocs("gone"); !strings.HasPrefix(now[0], "complete ") {
		t.Errorf("a job that was stopped has %q", now)
	}
}

// killTaskapi kills the process that runs an allocation.
func (a *machineAgent) killTaskapi(id string) {
	a.t.Helper()
	conn := must.Get(net.Dial("unix", filepath.Join(a.data, "allocs", id, "operator.sock")))(a.t)
	defer conn.Close()
	raw := must.Get(conn.(*net.UnixConn).SyscallConn())(a.t)
	must.OK(a.t, raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil ||
			syscall.Kill(int(peer.Pid), syscall.SIGKILL) != nil {
			a.t.Errorf("its taskapi can't be killed: %v", err)
		}
	}))
}

// TestAgentEndsStops: a job is registered while its allocation is being stopped, and nothing runs that allocation or
// resumes it. Its stop goes on, and then the job runs.
func TestAgentEndsStops(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t), "--no-resume")
	job := parsedJob(t, strings.Replace(pairJob, "count = 2", "", 1))
	job.TaskGroups[0].Tasks[0].ShutdownDelay = 2 * time.Second
	a.register(job)
	before := a.allocs("pair")
	asked(a.client().Jobs().Deregister("pair", false, nil))(t)
	a.killTaskapi(strings.Fields(before[0])[1])
	a.register(job)
	if now := a.allocs("pair"); len(now) != 2 || !strings.HasPrefix(now[0], "complete ") ||
		!strings.HasPrefix(now[1], "running ") {
		t.Errorf("the allocations were %q, and are %q", before, now)
	}
}

// sleeping returns the processes of tasks that sleep.
func sleeping(t *testing.T, data string) []string {
	t.Helper()
	return slices.DeleteFunc(processesOf(t, data), func(process string) bool {
		return !strings.Contains(process, " /bin/sleep 1000")
	})
}
