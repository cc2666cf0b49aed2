package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/disktest"
	"taskapi/internal/must"
)

// soloJob is pairJob with one allocation.
var soloJob = strings.Replace(pairJob, "count = 2", "", 1)

// TestAgentsRequestsEndWithTheAllocation: a query that waits for a job, and a stream of a task's output, end when the
// allocation ends. Then both are answered from what was saved.
func TestAgentsRequestsEndWithTheAllocation(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	client := a.client()
	a.register(parsedJob(t, soloJob))
	id := strings.Fields(a.allocs("pair")[0])[1]
	alloc, meta, err := client.Allocations().Info(id, nil)
	must.OK(t, err)
	waited := make(chan error, 1)
	go func() {
		index := meta.LastIndex
		for {
			now, next, err := client.Allocations().Info(id, &api.QueryOptions{WaitIndex: index})
			if err != nil || now.ClientStatus == api.AllocClientStatusComplete {
				waited <- err
				return
			}
			index = next.LastIndex
		}
	}()
	frames, failed := client.AllocFS().Logs(alloc, true, "t", "stdout", "start", 0, nil, nil)
	asked(client.Jobs().Deregister("pair", false, nil))(t)
	for open := true; open; {
		select {
		case _, open = <-frames:
		case err := <-failed:
			if err != nil && err != io.EOF { //nolint:errorlint // as the SDK compares it
				t.Logf("the stream ends with %v", err)
			}
			open = false
		}
	}
	if err := <-waited; err != nil {
		t.Errorf("a query that waits for the allocation: %v", err)
	}
	until(t, a.taskapiProcess, "reads the output of what has ended", func() bool {
		files, _, err := client.AllocFS().List(alloc, "/alloc/logs", nil)
		return err == nil && len(files) > 0
	})
}

// TestAgentsExecSessionsEnd: a command that a client runs in a task ends with the client, and with the agent.
func TestAgentsExecSessionsEnd(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	a.register(parsedJob(t, soloJob))
	alloc := asked(a.client().Allocations().Info(strings.Fields(a.allocs("pair")[0])[1], nil))(t)
	for _, end := range []string{"client", "agent"} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		input, output := io.Pipe()
		var out bytes.Buffer
		go func() {
			_, err := a.client().Allocations().Exec(ctx, alloc, "t", false, []string{"/bin/sleep", "2000"}, input, &out, &out,
				nil, nil)
			ended <- err
		}()
		runs := func() bool {
			return slices.ContainsFunc(processesOf(t, a.data), func(p string) bool {
				return strings.Contains(p, " /bin/sleep 2000")
			})
		}
		until(t, a.taskapiProcess, "runs a command", runs)
		if end == "agent" {
			kill(t, a.taskapiProcess)
		} else {
			cancel()
		}
		until(t, a.taskapiProcess, "ends the command of a gone "+end, func() bool { return !runs() })
		must.OK(t, output.Close())
		<-ended
		cancel()
	}
	if len(sleeping(t, a.data)) != 1 {
		t.Error("the task has ended, too")
	}
}

// TestAgentsDiskIsFull: on a full disk a registration is refused, and starts and lists nothing. What runs can be
// stopped, and with room again the job runs.
func TestAgentsDiskIsFull(t *testing.T) {
	t.Parallel()
	small := disktest.Mount(t, "size=16m,mode=0755")
	dir := small.Dir
	a := startAgent(t, dir)
	client := a.client()
	a.register(parsedJob(t, soloJob))
	small.Fill()
	other := parsedJob(t, strings.Replace(pairJob, "pair", "other", 1))
	_, _, err := client.Jobs().Register(other, nil)
	if answeredStatus(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(), "no space left") &&
		!strings.Contains(err.Error(), "make room on that file system") {
		t.Errorf("a registration on a full disk: %v", err)
	}
	jobs, _, err := client.Jobs().List(nil)
	if err != nil || len(jobs) != 1 || len(sleeping(t, dir)) != 1 {
		t.Errorf("jobs %+v, processes %q, %v", jobs, sleeping(t, dir), err)
	}
	asked(client.Jobs().Deregister("pair", false, nil))(t)
	until(t, a.taskapiProcess, "stops a job on a full disk", func() bool { return len(sleeping(t, dir)) == 0 })
	small.Empty()
	a.register(other)
	if all := strings.Join(a.allocs("other"), " "); strings.Count(all, "running ") != 2 {
		t.Errorf("with room, the job has the allocations %s", all)
	}
}

// TestAgentsHalfWrittenState: the machine stops while the state of an allocation is written. After the next start, the
// log names that allocation. All others run again, and its job can be registered.
func TestAgentsHalfWrittenState(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	job := parsedJob(t, soloJob)
	a.register(job)
	a.register(parsedJob(t, strings.Replace(soloJob, "pair", "other", 1)))
	id := strings.Fields(a.allocs("pair")[0])[1]
	others := a.allocs("other")
	kill(t, a.taskapiProcess)
	for _, one := range []string{id, strings.Fields(others[0])[1]} {
		a.killTaskapi(one)
	}
	for _, process := range processesOf(t, a.data) {
		pid, _, _ := strings.Cut(process, " ")
		_ = syscall.Kill(atoi(pid), syscall.SIGKILL) // it may have ended with its keeper
	}
	state := filepath.Join(a.data, "allocs", id, "state.db")
	info := must.Get(os.Stat(state))(t)
	must.OK(t, os.Truncate(state, info.Size()/2))
	b := startAgent(t, a.data)
	until(t, b.taskapiProcess, "names the damaged state", func() bool {
		return strings.Contains(b.out.String(), "saved state can't be read") && strings.Contains(b.out.String(), id)
	})
	until(t, b.taskapiProcess, "runs the others", func() bool { return slices.Equal(b.allocs("other"), others) })
	b.register(job)
	if all := b.allocs("pair"); len(all) != 1 || !strings.HasPrefix(all[0], "running ") || strings.HasSuffix(all[0], id) {
		t.Errorf("the damaged one's job has the allocations %q", all)
	}
}

// TestAgentWithoutInotify: an agent sees what begins, also where its user has all instances of inotify in use.
func TestAgentWithoutInotify(t *testing.T) {
	t.Parallel()
	data := shortDir(t)
	without := []string{"--user", "--map-root-user", "sh", "-c",
		"echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"", "sh"}
	if out, err := exec.Command("unshare", append(without, "true")...).CombinedOutput(); err != nil {
		t.Skipf("no user namespaces here: %v: %s", err, out)
	}
	a := startAgentBy(t, data, "unshare", append(without, self(t), "agent", "--data-dir", data)...)
	_, meta, err := a.client().Allocations().List(nil)
	must.OK(t, err)
	a.taskapi("run", "-d", "../../examples/hello.nomad.hcl")
	list, _, err := a.client().Allocations().List(&api.QueryOptions{WaitIndex: meta.LastIndex})
	if err != nil || len(list) != 1 {
		t.Errorf("a reader who waits sees %v, %v", list, err)
	}
	if !strings.Contains(a.out.String(), "fs.inotify.max_user_instances") {
		t.Error("the agent has inotify, or does not say what to raise")
	}
}
