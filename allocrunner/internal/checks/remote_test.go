package checks_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/checks"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// checking is a provider that has checks made elsewhere.
type checking struct {
	interfaces.ServiceProvider

	mu     sync.Mutex // guards the fields below
	result *interfaces.CheckResult
	fed    []interfaces.CheckStatus
}

func (p *checking) Name() string { return "consul" }

func (p *checking) Result(string, int) (interfaces.CheckResult, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.result == nil {
		return interfaces.CheckResult{}, false
	}
	return *p.result, true
}

func (p *checking) Feed(_ string, _ int, r interfaces.CheckResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fed = append(p.fed, r.Status)
}

func (p *checking) set(r *interfaces.CheckResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.result = r
}

// TestChecksMadeElsewhere: their results are shown soon after they are known, thresholds are not applied twice, a
// warning is as good as a success where the job says so, what nobody knows changes nothing, and check_restart goes by
// them.
func TestChecksMadeElsewhere(t *testing.T) {
	t.Parallel()
	warning := interfaces.CheckResult{Status: interfaces.CheckWarning, Output: "w"}
	failure := interfaces.CheckResult{Status: interfaces.CheckFailure, Output: "f"}
	success := interfaces.CheckResult{Status: interfaces.CheckSuccess, Output: "s"}
	synctest.Test(t, func(t *testing.T) {
		p := &checking{}
		list := []api.ServiceCheck{
			{Name: "plain", Type: "grpc", Interval: 10 * time.Second, Timeout: time.Second, SuccessBeforePassing: 3,
				FailuresBeforeCritical: 3,
				CheckRestart:           &api.CheckRestart{Limit: 2, Grace: new(time.Duration)}},
			{Name: "lenient", Type: "http", Interval: 10 * time.Second, Timeout: time.Second, OnUpdate: api.OnUpdateIgnoreWarn},
		}
		alloc := newAlloc(list...)
		alloc.Job.TaskGroups[0].Services[0].Provider = "consul"
		cfg := newConfig(alloc)
		cfg.Provider = func(name string) (interfaces.ServiceProvider, bool) { return p, name == "consul" }
		began := time.Now()
		restarts := make(chan string, 9)
		cfg.Restart = func(_, reason string) { restarts <- reason }
		cfg.Up = func(string) time.Time { return began }
		r := must.Get(checks.New(cfg))(t)
		ctx, end := context.WithCancel(t.Context())
		r.Begin("")
		go r.Run(ctx)
		shows := func(plain, lenient string) {
			t.Helper()
			synctest.Wait()
			got := map[string]string{}
			results, _ := r.Results()
			for _, s := range results {
				got[s.Check] = s.Status
			}
			if got["plain"] != plain || got["lenient"] != lenient {
				t.Errorf("%v after %v, want %s and %s", got, time.Since(began), plain, lenient)
			}
		}
		time.Sleep(25 * time.Second)
		shows("pending", "pending")
		p.set(&success)
		time.Sleep(1100 * time.Millisecond)
		shows("success", "success")
		p.set(&warning)
		time.Sleep(10 * time.Second)
		shows("failure", "success")
		p.set(nil)
		time.Sleep(30 * time.Second)
		shows("failure", "success")
		if len(restarts) > 0 {
			t.Error("restarted by what nobody knows")
		}
		p.set(&failure)
		time.Sleep(20 * time.Second)
		shows("failure", "failure")
		if len(restarts) != 1 {
			t.Errorf("%d restarts, want one", len(restarts))
		}
		end()
		synctest.Wait()
	})
}

// TestScriptsAreFed to the provider, warnings as such.
func TestScriptsAreFed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &checking{}
		alloc := newAlloc(api.ServiceCheck{Name: "s", Type: "script", Command: "x", TaskName: "t", Interval: 10 * time.Second,
			Timeout: time.Second, OnUpdate: api.OnUpdateIgnoreWarn})
		alloc.Job.TaskGroups[0].Services[0].Provider = "consul"
		cfg := newConfig(alloc)
		cfg.Provider = func(name string) (interfaces.ServiceProvider, bool) { return p, name == "consul" }
		code := -1
		cfg.Exec = func(context.Context, string, []string) (checks.ExecResult, error) {
			code++
			return checks.ExecResult{Code: code}, nil
		}
		r := must.Get(checks.New(cfg))(t)
		ctx, end := context.WithCancel(t.Context())
		r.Begin("t")
		go r.Run(ctx)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		results, _ := r.Results()
		for _, s := range results {
			same.As(t, "success", s.Status, "a warning is")
		}
		time.Sleep(10 * time.Second)
		end()
		synctest.Wait()
		if want := []interfaces.CheckStatus{interfaces.CheckSuccess, interfaces.CheckWarning,
			interfaces.CheckFailure}; !slices.Equal(p.fed, want) {
			t.Errorf("fed %v, want %v", p.fed, want)
		}
	})
}
