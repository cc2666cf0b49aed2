package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster/claim"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/internal/must"
)

// standbyJob is a task that writes down when it runs, on the machine's clock.
const standbyJob = `
job "ha" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "while read up idle </proc/uptime; do echo $up >>%s/$NOMAD_ALLOC_ID; sleep 0.02; done"]
      }
    }
  }
}
`

// station is a machine that stands by: a taskapi with a data directory.
type station struct {
	taskapiProcess
	dir string
}

// client returns a client of the machine's operator.
func (s station) client(t *testing.T) *api.Client {
	t.Helper()
	return must.Get(operatorOf(s.dir, s.id()))(t)
}

// pair is two machines that share a store.
type pair struct {
	dir           string
	etcd          string // the settings by which they share it; empty for the store of a test
	first, second station
}

func (p *pair) run(t *testing.T, name string) station {
	t.Helper()
	dir := filepath.Join(p.dir, name)
	must.OK(t, os.MkdirAll(dir, 0o700))
	env := []string{"TASKAPI_TEST_STORE=" + filepath.Join(p.dir, "store"), "TASKAPI_TEST_CUT=" + filepath.Join(dir, "cut")}
	if p.etcd != "" {
		env = nil
		err := errors.Join(os.WriteFile(filepath.Join(dir, "taskapi.hcl"), []byte(p.etcd), 0o600),
			os.WriteFile(filepath.Join(dir, "cluster.key"), bytes.Repeat([]byte("k"), 32), 0o600))
		must.OK(t, err)
	}
	s := startCommandWith(t, self(t), env, "run", "--standby", "-data-dir", dir, filepath.Join(p.dir, "job.hcl"))
	t.Cleanup(func() { _ = syscall.Kill(s.Process.Pid, syscall.SIGCONT); _ = s.Process.Kill() })
	return station{s, dir}
}

// newPair starts the first machine, and a second one that stands by.
func newPair(t *testing.T, etcd string) *pair {
	t.Helper()
	p := &pair{dir: shortDir(t), etcd: etcd}
	err := errors.Join(os.MkdirAll(filepath.Join(p.dir, "beats"), 0o700), os.Mkdir(filepath.Join(p.dir, "store"), 0o700),
		os.WriteFile(filepath.Join(p.dir, "job.hcl"), fmt.Appendf(nil, standbyJob, filepath.Join(p.dir, "beats")), 0o600))
	must.OK(t, err)
	p.first = p.run(t, "1")
	until(t, p.first.taskapiProcess, "runs its task", func() bool { return len(p.beats(p.first)) > 0 })
	p.second = p.run(t, "2")
	until(t, p.second.taskapiProcess, "stands by", func() bool {
		return strings.Contains(p.second.out.String(), "standing by: ha.g[0] runs on the machine")
	})
	return p
}

// id returns the machine's allocation; empty for none.
func (s station) id() string {
	if ids, _ := filepath.Glob(filepath.Join(s.dir, "allocs", "*-*-*-*-*")); len(ids) > 0 {
		return filepath.Base(ids[0])
	}
	return ""
}

// keeper returns the number of the keeper's process.
func (s station) keeper(t *testing.T) int {
	t.Helper()
	var record struct{ Keeper struct{ PID int } }
	text, err := os.ReadFile(filepath.Join(s.dir, "allocs", s.id(), "keeper.json"))
	if err == nil {
		err = json.Unmarshal(text, &record)
	}
	if err != nil || record.Keeper.PID == 0 {
		t.Fatal(record, err)
	}
	return record.Keeper.PID
}

// beats returns when the machine's task has run, on the clock of this machine.
func (p *pair) beats(s station) (times []float64) {
	text, err := os.ReadFile(filepath.Join(p.dir, "beats", s.id()))
	if err != nil || s.id() == "" {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if at, err := strconv.ParseFloat(strings.TrimSpace(line), 64); err == nil {
			times = append(times, at)
		}
	}
	return times
}

// taken waits until the second machine runs the task, and fails if the first one's ran then or later.
func (p *pair) taken(t *testing.T) {
	t.Helper()
	for give := time.Now().Add(claim.TTL + deadline); len(p.beats(p.second)) < 10; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(give) {
			t.Fatalf("the second machine never takes over:\n%s\nthe first:\n%s", p.second.out, p.first.out)
		}
	}
	first, second := p.beats(p.first), p.beats(p.second)
	if last := first[len(first)-1]; last >= second[0] {
		t.Errorf("the first machine's task ran at %v, and the second's from %v", last, second[0])
	}
}

// says fails unless a command about the machine says something.
func (s station) says(t *testing.T, want string, command ...string) {
	t.Helper()
	c := startCommandWith(t, self(t), nil, append([]string{command[0], "-data-dir", s.dir}, command[1:]...)...)
	if err := c.Wait(); !strings.Contains(c.out.String(), want) {
		t.Errorf("%q on the machine does not say %q: %v:\n%s", command, want, err, c.out)
	}
}

func (s station) signal(t *testing.T, sig syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Errorf("%v for %d: %v", sig, pid, err)
		}
	}
}

// TestStandby: of two machines at most one runs the task, whatever happens to the first, and the second takes over.
func TestStandby(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T, p *pair){
		"taskapi is killed": func(t *testing.T, p *pair) {
			p.first.signal(t, syscall.SIGKILL, p.first.Process.Pid)
			p.first.says(t, "its taskapi has exited and its tasks are killed within 10s", "exec", p.first.id(), "true")
			p.taken(t)
			p.first.says(t, " not running (its taskapi has exited) ", "status")
			const killed = "its tasks were killed, because another machine may run it"
			p.first.says(t, killed, "status")
			p.first.says(t, killed, "exec", p.first.id(), "true")
			p.first.says(t, killed, "attach", p.first.id())
		},
		"taskapi and the keeper are stopped and go on": func(t *testing.T, p *pair) {
			both := []int{p.first.Process.Pid, p.first.keeper(t)}
			p.first.signal(t, syscall.SIGSTOP, both...)
			p.taken(t)
			p.first.signal(t, syscall.SIGCONT, both[0])
			if err := p.first.Wait(); p.first.ProcessState.ExitCode() != 1 ||
				!strings.Contains(p.first.out.String(), claim.ErrLost.Error()) {
				t.Errorf("the first machine ends with %v:\n%s", err, p.first.out)
			}
			if n := len(p.beats(p.second)); n == 0 {
				t.Error("the second machine's task ended with the first")
			}
		},
		"the network of the first is cut": func(t *testing.T, p *pair) {
			must.OK(t, os.WriteFile(filepath.Join(p.first.dir, "cut"), nil, 0o600))
			p.taken(t)
			must.OK(t, os.Remove(filepath.Join(p.first.dir, "cut")))
			if err := p.first.Wait(); p.first.ProcessState.ExitCode() != 1 {
				t.Errorf("the first machine ends with %v:\n%s", err, p.first.out)
			}
			p.first.says(t, "another machine may run the allocation, because the claim on it was not renewed in time",
				"events", p.first.id())
			p.first.says(t, "Force killing: "+claim.ErrLost.Error(), "events", p.first.id())
		},
		"the keeper is killed and taskapi stopped": func(t *testing.T, p *pair) {
			p.first.signal(t, syscall.SIGSTOP, p.first.Process.Pid)
			p.first.signal(t, syscall.SIGKILL, p.first.keeper(t))
			p.taken(t)
		},
		"the first is stopped by its operator": func(t *testing.T, p *pair) {
			p.first.signal(t, syscall.SIGTERM, p.first.Process.Pid)
			p.taken(t)
			if err := p.first.Wait(); err != nil {
				t.Errorf("the first machine ends with %v:\n%s", err, p.first.out)
			}
		},
		"taskapi is killed and another goes on": func(t *testing.T, p *pair) {
			before := p.first.id()
			killed := time.Now()
			p.first.signal(t, syscall.SIGKILL, p.first.Process.Pid)
			_ = p.first.Cmd.Wait()
			again := p.run(t, "1")
			n := len(p.beats(again))
			until(t, again.taskapiProcess, "goes on", func() bool { return len(p.beats(again)) > n+10 })
			if time.Since(killed) > claim.Held/2 {
				t.Skip("this machine was too slow to start another taskapi in time")
			}
			if strings.Contains(again.out.String(), "standing by") || again.id() != before {
				t.Errorf("the next taskapi of the first machine:\n%s", again.out)
			}
			if p.second.id() != "" {
				t.Errorf("the second machine:\n%s", p.second.out)
			}
			p.first = again
			again.signal(t, syscall.SIGTERM, again.Process.Pid)
			p.taken(t)
		},
	}
	run := func(name string, test func(t *testing.T, p *pair), etcd func(t *testing.T) string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, etcd(t))
			test(t, p)
			p.second.signal(t, syscall.SIGTERM, p.second.Process.Pid)
			if err := p.second.Wait(); err != nil {
				t.Errorf("the second machine ends with %v:\n%s", err, p.second.out)
			}
		})
	}
	for name, test := range tests {
		run(name, test, func(*testing.T) string { return "" })
	}
	withEtcd := func(t *testing.T) string {
		return fmt.Sprintf("cluster {\n address = \"etcd://%s\"\n key_file = \"cluster.key\"\n}\n",
			etcdtest.Start(t, 1)[0].Client)
	}
	for _, name := range []string{"taskapi and the keeper are stopped and go on", "the first is stopped by its operator"} {
		run("with etcd "+name, tests[name], withEtcd)
	}
	run("the first ends on a full disk and is resumed", resumedAfterFullDisk, withEtcd)
	run("the second can't begin on a full disk", unbegunOnFullDisk, withEtcd)
}

// unbegunOnFullDisk: a machine that takes the claim and can't begin gives it up, so a third one need not wait.
func unbegunOnFullDisk(t *testing.T, p *pair) {
	must.OK(t, unix.Prlimit(p.second.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{}, nil))
	p.first.signal(t, syscall.SIGTERM, p.first.Process.Pid)
	must.OK(t, p.first.Wait())
	if err := p.second.Wait(); err == nil {
		t.Fatalf("the second machine ends well:\n%s", p.second.out)
	}
	p.second = p.run(t, "3")
	p.taken(t)
	if out := p.second.out.String(); strings.Contains(out, "runs on the machine") {
		t.Errorf("the third machine has waited for the second:\n%s", out)
	}
}

// resumedAfterFullDisk: an allocation whose end could not be saved runs again on no machine but the one that has it
// now.
func resumedAfterFullDisk(t *testing.T, p *pair) {
	must.OK(t, unix.Prlimit(p.first.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{}, nil))
	p.first.signal(t, syscall.SIGTERM, p.first.Process.Pid)
	p.taken(t)
	if err := p.first.Wait(); !strings.Contains(p.first.out.String(), "that could not be saved") {
		t.Fatalf("the first machine ends with %v:\n%s", err, p.first.out)
	}
	p.first.says(t, "is run by taskapi", "takeover", p.first.id())
	until(t, p.second.taskapiProcess, "keeps the claim", func() bool {
		c := startCommandWith(t, self(t), nil, "events", "-data-dir", p.first.dir, p.first.id())
		return c.Wait() == nil && strings.Contains(c.out.String(), claim.ErrLost.Error())
	})
	p.taken(t)
}
