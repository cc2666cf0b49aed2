package checks_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/checks"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// withTask adds a task with a service that has these checks.
func withTask(alloc *api.Allocation, name string, list ...api.ServiceCheck) *api.Allocation {
	group := alloc.GetTaskGroup()
	group.Tasks = append(group.Tasks, &api.Task{Name: name, Services: []*api.Service{
		{Name: name, Provider: "nomad", PortLabel: "http", Checks: list},
	}})
	return alloc
}

// run makes a runner and runs it to the end of the test, without beginning anything.
func run(t *testing.T, cfg checks.Config) *checks.Runner {
	t.Helper()
	r := must.Get(checks.New(cfg))(t)
	launch(t, r)
	return r
}

func launch(t *testing.T, r *checks.Runner) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); r.Run(t.Context()) }()
	t.Cleanup(func() { r.Stop(); <-done })
}

func statuses(r *checks.Runner) map[string]string {
	out := map[string]string{}
	for name, s := range byName(r) {
		out[name] = s.Status
	}
	return out
}

func expectStatuses(t *testing.T, r *checks.Runner, want map[string]string) {
	t.Helper()
	synctest.Wait()
	same.As(t, want, statuses(r), "statuses")
}

// A check runs between its task's Begin and End, and shows pending outside.
func TestBeginAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := tcpCheck("named")
		named.TaskName = "a"
		alloc := withTask(withTask(newAlloc(tcpCheck("group"), named), "a", tcpCheck("a")), "b", tcpCheck("b"))
		cfg := newConfig(alloc)
		d := &dialer{}
		cfg.DialContext = d.dial
		r := run(t, cfg)
		time.Sleep(time.Hour)
		expectStatuses(t, r, map[string]string{"group": "pending", "named": "pending", "a": "pending", "b": "pending"})
		if len(d.at) != 0 {
			t.Errorf("%d runs before anything began", len(d.at))
		}
		r.Begin("")
		time.Sleep(pastFirst)
		expectStatuses(t, r, map[string]string{"group": "success", "named": "pending", "a": "pending", "b": "pending"})
		r.Begin("a")
		time.Sleep(pastFirst)
		expectStatuses(t, r, map[string]string{"group": "success", "named": "success", "a": "success", "b": "pending"})
		r.End("a")
		expectStatuses(t, r, map[string]string{"group": "success", "named": "pending", "a": "pending", "b": "pending"})
		if got := byName(r)["a"]; got.Output != "nomad: waiting to run" || got.StatusCode != 0 ||
			got.Timestamp != time.Now().Unix() {
			t.Errorf("after the task's end: %+v", got)
		}
		r.End("")
		r.End("b")
		synctest.Wait()
		ran := len(d.at)
		time.Sleep(time.Hour)
		if len(d.at) != ran {
			t.Errorf("%d runs after the end", len(d.at)-ran)
		}
		r.Begin("b")
		time.Sleep(pastFirst)
		expectStatuses(t, r, map[string]string{"group": "pending", "named": "pending", "a": "pending", "b": "success"})
	})
}

// The result of a run that the end of its task has cut short is dropped, and the check's next run waits for it.
func TestRestartDuringARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(newAlloc(tcpCheck("tcp")))
		release := make(chan struct{})
		runs, busy, most := 0, 0, 0
		cfg.DialContext = func(context.Context, string, string) (net.Conn, error) {
			runs, busy = runs+1, busy+1
			most = max(most, busy)
			if runs == 1 {
				<-release // deaf to its context
			}
			busy--
			return nil, fmt.Errorf("run %d", runs)
		}
		r := start(t, cfg)
		time.Sleep(pastFirst)
		for range 3 {
			r.End("")
			r.Begin("")
			time.Sleep(time.Second)
		}
		expectStatuses(t, r, map[string]string{"tcp": "pending"})
		same.As(t, 1, runs, "runs while the first is under way")
		close(release)
		time.Sleep(pastFirst)
		expectStatuses(t, r, map[string]string{"tcp": "failure"})
		if got := byName(r)["tcp"].Output; got != "run 2" || most != 1 {
			t.Errorf("output %q, %d runs at once", got, most)
		}
	})
}

// TestARunThatIsCutShortRestartsNothing: neither the end of its task nor that of all checks is a failure of the
// service.
func TestARunThatIsCutShortRestartsNothing(t *testing.T) {
	for name, end := range map[string]func(*checks.Runner){
		"its task's end":  func(r *checks.Runner) { r.End("") },
		"its next start":  func(r *checks.Runner) { r.Begin("") },
		"the last of all": func(r *checks.Runner) { r.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				check := failingCheck("tcp", 1, 0)
				check.Interval, check.Timeout = time.Hour, time.Minute
				cfg := newConfig(newAlloc(check))
				cfg.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, errors.New("down")
				}
				requests := &restarts{began: time.Now()}
				cfg.Restart = requests.add
				r := start(t, cfg)
				time.Sleep(30 * time.Second) // the run is under way
				end(r)
				synctest.Wait()
				if len(requests.all) > 0 {
					t.Errorf("requested %q", requests.all)
				}
			})
		})
	}
}

func TestInitialStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list []api.ServiceCheck
		for _, initial := range []string{"", "passing", "warning", "critical"} {
			c := tcpCheck("of " + initial)
			c.InitialStatus = initial
			list = append(list, c)
		}
		r := run(t, newConfig(newAlloc(list...)))
		r.Begin("")
		want := map[string]string{"of ": "pending", "of passing": "success", "of warning": "failure",
			"of critical": "failure"}
		expectStatuses(t, r, want)
		r.End("")
		expectStatuses(t, r, map[string]string{"of ": "pending", "of passing": "pending", "of warning": "pending",
			"of critical": "pending"})
	})
}

// The status waits for its threshold; the output is that of the latest run.
func TestThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tcpCheck("tcp")
		c.SuccessBeforePassing, c.FailuresBeforeCritical = 2, 3
		cfg := newConfig(newAlloc(c))
		d := &dialer{}
		cfg.DialContext = d.dial
		r := start(t, cfg)
		time.Sleep(pastFirst)
		step := func(err error, status, output string) {
			t.Helper()
			synctest.Wait()
			if got := byName(r)["tcp"]; got.Status != status || got.Output != output || got.Timestamp != time.Now().Unix() {
				t.Errorf("got %+v, want %s %q", got, status, output)
			}
			d.fail(err)
			time.Sleep(c.Interval)
		}
		down := errors.New("down")
		step(nil, "pending", "nomad: tcp ok")
		step(down, "success", "nomad: tcp ok")
		step(down, "success", "down")
		step(down, "success", "down")
		step(nil, "failure", "down")
		step(nil, "failure", "nomad: tcp ok")
		step(nil, "success", "nomad: tcp ok")
	})
}

// An earlier process's result is shown until the first run, once.
func TestSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tcpCheck("tcp")
		c.FailuresBeforeCritical = 2
		cfg := newConfig(newAlloc(c, tcpCheck("new")))
		d := &dialer{err: errors.New("down")}
		cfg.DialContext = d.dial
		id := "0ceb1a6f9e16a51a13d70fc210677c8693bffdf94cd87300a456df9858f98612"
		saved := api.AllocCheckStatus{ID: id, Check: "tcp", Group: "demo.web[0]", Service: "demo-web", Mode: "healthiness",
			Status: "success", StatusCode: 200, Output: "fine", Timestamp: 7}
		cfg.Saved = api.AllocCheckStatuses{id: saved, "gone": {ID: "gone", Status: "failure"}}
		r := run(t, cfg)
		r.Begin("")
		expectStatuses(t, r, map[string]string{"tcp": "success", "new": "pending"})
		same.As(t, saved, byName(r)["tcp"], "before the first run")
		time.Sleep(pastFirst)
		expectStatuses(t, r, map[string]string{"tcp": "success", "new": "failure"})
		if got := byName(r)["tcp"]; got.Output != "down" || got.StatusCode != 0 {
			t.Errorf("after a failure of two: %+v", got)
		}
		r.Begin("")
		expectStatuses(t, r, map[string]string{"tcp": "pending", "new": "pending"})
	})
}

// A hundred checks that begin together run one after the other, the same way each time.
func TestNoBurst(t *testing.T) {
	var list []api.ServiceCheck
	for i := range 100 {
		c := tcpCheck(fmt.Sprint("check ", i))
		c.Interval = time.Second
		list = append(list, c)
	}
	offsets := func() (at []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			d := &dialer{}
			cfg := newConfig(newAlloc(list...))
			cfg.DialContext = d.dial
			begun := time.Now()
			r := start(t, cfg)
			time.Sleep(500 * time.Millisecond)
			r.Stop()
			at = append(at, d.first.Sub(begun))
			for _, since := range d.at[1:] {
				at = append(at, d.first.Add(since).Sub(begun))
			}
		})
		return at
	}
	at := offsets()
	if len(at) != len(list) || at[len(at)-1] > 100*time.Millisecond {
		t.Fatalf("%d first runs, the last %v after the beginning", len(at), at[len(at)-1])
	}
	most := 0
	for i := range at {
		n, _ := slices.BinarySearch(at[i:], at[i]+time.Millisecond)
		most = max(most, n)
	}
	if most > 6 { // of 100 checks at random over 100 ms, seven in a millisecond would be a rare thing
		t.Errorf("%d checks ran within a millisecond", most)
	}
	same.As(t, at, offsets(), "another schedule the next time")
}

// restarts records what a runner asks for.
type restarts struct {
	mu    sync.Mutex // guards all
	began time.Time
	all   []string
}

func (r *restarts) add(task, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprintf("%v %s: %s", time.Since(r.began).Truncate(time.Second), task, reason))
}

func failingCheck(name string, limit int, grace time.Duration) api.ServiceCheck {
	c := tcpCheck(name)
	c.Interval, c.CheckRestart = time.Second, &api.CheckRestart{Limit: limit, Grace: &grace}
	return c
}

// Nomad restarts about two seconds after each start here, and so do we, again and again.
func TestRestartsAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := withTask(newAlloc(), "main", failingCheck("never", 2, time.Second))
		cfg := newConfig(alloc)
		cfg.DialContext = (&dialer{err: errors.New("down")}).dial
		requests := &restarts{began: time.Now()}
		restarting := make(chan *checks.Runner, 1)
		var starts started
		starts.set("main", time.Now())
		cfg.Up = starts.up
		cfg.Restart = func(task, reason string) {
			requests.add(task, reason)
			r := <-restarting
			defer func() { restarting <- r }()
			r.End(task)
			starts.set(task, time.Now())
			r.Begin(task)
		}
		r := must.Get(checks.New(cfg))(t)
		restarting <- r
		launch(t, r)
		begin(r, alloc)
		time.Sleep(7 * time.Second)
		synctest.Wait()
		want := []string{`2s main: healthcheck: check "never" unhealthy`, `4s main: healthcheck: check "never" unhealthy`,
			`6s main: healthcheck: check "never" unhealthy`}
		same.As(t, want, requests.all, "restarts")
	})
}

// Each task is requested once until it begins again, by whichever of its checks comes first; a check without a limit
// never requests one.
func TestRestartIsRequestedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := failingCheck("named", 3, 0)
		named.TaskName = "b"
		alloc := withTask(newAlloc(failingCheck("group", 5, 0), named), "a",
			failingCheck("first", 2, 0), failingCheck("second", 2, 0), failingCheck("off", 0, 0))
		alloc.GetTaskGroup().Tasks = append(alloc.GetTaskGroup().Tasks, &api.Task{Name: "b"})
		// the checks' own come first
		alloc.GetTaskGroup().Services[0].CheckRestart = &api.CheckRestart{Limit: 9, Grace: new(time.Minute)}
		cfg := newConfig(alloc)
		cfg.DialContext = (&dialer{err: errors.New("down")}).dial
		requests := &restarts{began: time.Now()}
		cfg.Restart = requests.add
		r := start(t, cfg)
		time.Sleep(time.Minute)
		synctest.Wait()
		for i, want := range []string{"1s a: healthcheck: check ", `2s b: healthcheck: check "named" unhealthy`,
			`4s : healthcheck: check "group" unhealthy`} {
			if i >= len(requests.all) || len(requests.all[i]) < len(want) || requests.all[i][:len(want)] != want {
				t.Errorf("restart %d of %q, want %s", i, requests.all, want)
			}
		}
		if len(requests.all) != 3 {
			t.Errorf("requested %d restarts, want 3", len(requests.all))
		}
		r.Begin("b")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(requests.all); n != 4 || requests.all[3] != `1m2s b: healthcheck: check "named" unhealthy` {
			t.Errorf("after another beginning: %q", requests.all)
		}
	})
}

// A service's check_restart is for its checks that have none.
func TestRestartOfTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tcpCheck("tcp")
		c.Interval = time.Second
		alloc := newAlloc(c)
		alloc.GetTaskGroup().Services[0].CheckRestart = &api.CheckRestart{Limit: 3} // with the default grace of a second
		cfg := newConfig(alloc)
		cfg.DialContext = (&dialer{err: errors.New("down")}).dial
		requests := &restarts{began: time.Now()}
		cfg.Restart = requests.add
		start(t, cfg)
		time.Sleep(time.Minute)
		synctest.Wait()
		same.As(t, []string{`3s : healthcheck: check "tcp" unhealthy`}, requests.all, "restarts")
	})
}

// TestGraceCountsFromTheStart of what would be restarted, at the first one and at each later one, also when the check
// has failed for long and nobody has begun it again. What isn't up is not restarted.
func TestGraceCountsFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(newAlloc(failingCheck("group", 2, 5*time.Second), failingCheck("other", 2, 5*time.Second)))
		cfg.DialContext = (&dialer{err: errors.New("down")}).dial
		requests := &restarts{began: time.Now()}
		var starts started
		cfg.Restart, cfg.Up = requests.add, starts.up
		run(t, cfg).Begin("")
		up := func(at time.Time) { starts.set("", at) }
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			for i := range requests.all {
				requests.all[i], _, _ = strings.Cut(requests.all[i], " ")
			}
			same.As(t, want, requests.all, "restarts ", when)
			requests.all = nil
		}

		time.Sleep(time.Minute)
		expect("before anything has started")
		up(time.Now())
		time.Sleep(30 * time.Second)
		expect("after the first start", "1m6s")
		up(time.Time{})
		time.Sleep(30 * time.Second)
		expect("while it is down")
		up(time.Now())
		time.Sleep(30 * time.Second)
		expect("after another start", "2m6s")
		up(time.Now()) // restarted between two runs
		time.Sleep(30 * time.Second)
		expect("after a quick start", "2m36s")
		up(time.Now().Add(-4 * time.Second)) // nobody looked meanwhile
		time.Sleep(30 * time.Second)
		expect("after a start that is known late", "3m2s")
	})
}

// TestGraceOfAnUpdatedCheck counts from the update, since its task has started long ago.
func TestGraceOfAnUpdatedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		check := failingCheck("tcp", 2, 5*time.Second)
		cfg := newConfig(newAlloc())
		cfg.DialContext = (&dialer{err: errors.New("down")}).dial
		requests := &restarts{began: time.Now()}
		cfg.Restart = requests.add
		r := start(t, cfg)
		time.Sleep(time.Minute)
		cfg.Alloc = newAlloc(check)
		must.OK(t, r.Update(cfg))
		time.Sleep(time.Minute)
		synctest.Wait()
		same.As(t, []string{`1m6s : healthcheck: check "tcp" unhealthy`}, requests.all, "restarts")
	})
}

// TestSuspend clears the results, and has no check run, until the group begins again.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(withTask(withTask(newAlloc(tcpCheck("group")), "a", tcpCheck("a")), "b", tcpCheck("b")))
		d := &dialer{}
		var changes atomic.Int32
		cfg.DialContext, cfg.OnChange = d.dial, func() { changes.Add(1) }
		r := run(t, cfg)
		r.Begin("")
		r.Begin("a")
		time.Sleep(pastFirst)
		expectStatuses(t, r, map[string]string{"group": "success", "a": "success", "b": "pending"})
		reported, ran := changes.Load(), len(d.at)
		r.Suspend()
		r.Suspend()
		same.As(t, 1, changes.Load()-reported, "reports")
		r.Begin("b")
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, _ := r.Results(); got != nil || len(d.at) != ran {
			t.Errorf("results %v, %d runs more", got, len(d.at)-ran)
		}
		r.End("b")
		r.Begin("")
		expectStatuses(t, r, map[string]string{"group": "pending", "a": "pending", "b": "pending"})
		time.Sleep(pastFirst)
		expectStatuses(t, r, map[string]string{"group": "success", "a": "success", "b": "pending"})
	})
}
