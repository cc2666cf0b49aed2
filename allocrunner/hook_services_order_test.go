package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/registration"
	"taskapi/allocrunner/internal/registration/registrationtest"
	"taskapi/allocrunner/internal/services"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// served is an allocation with services of its group and of a task, without processes.
type served struct{ logger *slog.Logger }

func (s served) services(alloc *api.Allocation) (services.Owned, error) {
	return services.Resolver{}.ResolveAll(alloc, "dc1")
}

func (s served) checkConfig(alloc *api.Allocation) checks.Config {
	return checks.Config{Alloc: alloc, Logger: s.logger,
		Provider: func(string) (interfaces.ServiceProvider, bool) { return nil, false }}
}
func (served) checkedTasks(string) []checkedTask      { return nil }
func (served) preTaskRestart(context.Context)         {}
func (served) checksChanged(_ api.AllocCheckStatuses) {}
func versioned(name string, version int) string       { return fmt.Sprintf("%s%d", name, version) }

// checked gives a service a check of its own name, which runs once.
func checked(name string, s *api.Service) *api.Service {
	s.Provider, s.Name = "nomad", name
	s.Checks = []api.ServiceCheck{{Name: name, Type: "tcp", PortLabel: "1", Interval: time.Hour, Timeout: time.Second}}
	return s
}

// servedVersion returns a version of an allocation: the services that stay have a tag that differs, and one has another
// name.
func servedVersion(version int) *api.Allocation {
	group := api.NewTaskGroup("g", 1)
	tags := []string{versioned("v", version)}
	group.Services = []*api.Service{checked("group", &api.Service{Tags: tags}),
		checked(versioned("group", version), &api.Service{})}
	task := api.NewTask("t", "raw_exec")
	task.Services = []*api.Service{checked("task", &api.Service{Tags: tags}),
		checked(versioned("task", version), &api.Service{})}
	group.Tasks = []*api.Task{task}
	job := &api.Job{ID: new("job"), Name: new("job"), TaskGroups: []*api.TaskGroup{group}}
	job.Canonicalize()
	return &api.Allocation{ID: "115ef685-6b9e-3eaf-e74b-6b04f094ebca", Name: "job.g[0]", Job: job, JobID: "job",
		TaskGroup:  "g",
		TaskStates: map[string]*api.TaskState{"t": {State: "running"}}}
}

// hooked is the hook of one allocation, with its provider, and what is expected of them.
type hooked struct {
	hook     *servicesHook
	task     *taskServices
	provider *registrationtest.Provider

	mu      sync.Mutex // guards the version
	version int
}

func newHooked(provider *registrationtest.Provider) *hooked {
	logger := slog.New(slog.DiscardHandler)
	alloc := servedVersion(1)
	h := &servicesHook{alloc: served{logger}, logger: logger,
		registrar: registration.New(alloc.ID, []interfaces.ServiceProvider{provider})}
	return &hooked{hook: h, task: &taskServices{services: h, task: "t", serves: true}, provider: provider, version: 1}
}

// steps are all that happens to an allocation, by name.
func (h *hooked) steps(ctx context.Context, restored bool) map[string]func() error {
	present := func() *api.Allocation {
		h.mu.Lock()
		defer h.mu.Unlock()
		return servedVersion(h.version)
	}
	return map[string]func() error{
		"Prerun": func() error {
			return h.hook.Prerun(ctx, &interfaces.RunnerPrerunRequest{Alloc: present(), Restored: restored})
		},
		"Update": func() error {
			h.mu.Lock() // one update follows another
			defer h.mu.Unlock()
			h.version++
			return h.hook.Update(ctx, &interfaces.RunnerUpdateRequest{Alloc: servedVersion(h.version)})
		},
		"restart":  func() error { return h.hook.PreTaskRestart(ctx) },
		"PreKill":  func() error { h.hook.PreKill(); return nil },
		"Postrun":  func() error { return h.hook.Postrun(ctx) },
		"Shutdown": func() error { h.hook.Shutdown(); return nil },
		"start":    func() error { return h.task.Poststart(ctx, nil) },
		"kill":     func() error { return h.task.PreKilling(ctx) },
		"exit":     func() error { return h.task.Exited(ctx, interfaces.ExitResult{}) },
	}
}

// shown returns the names of the checks that are shown, sorted.
func (h *hooked) shown() []string {
	names := []string{}
	results, _ := h.hook.results()
	for _, c := range results {
		names = append(names, c.Service)
	}
	slices.Sort(names)
	return names
}

// model says what is to be known after each step, one at a time.
type model struct {
	group, task        string // "", "registered", "left" or "closed"
	began, left, ended bool
	version            int
	known              []string // at Shutdown
}

func (m *model) step(name string) {
	if name == "Update" {
		m.version++
	}
	if m.left {
		return
	}
	switch name {
	case "Prerun":
		m.began = true
		if m.group == "" {
			m.group = "registered"
		}
	case "restart":
		if m.group != "" && m.group != "closed" {
			m.group = "registered"
		}
	case "PreKill":
		m.group, m.ended = "closed", true
	case "Postrun":
		m.group, m.task, m.ended = "closed", "closed", true
	case "start":
		if m.task != "closed" {
			m.task = "registered"
		}
	case "kill", "exit":
		if m.task == "registered" {
			m.task = "left"
		}
	case "Shutdown":
		m.known, m.left = m.names(), true
	}
}

// names returns the names of the services that are known.
func (m *model) names() []string {
	if m.left {
		return m.known
	}
	names := []string{}
	for kind, state := range map[string]string{"group": m.group, "task": m.task} {
		if state == "registered" && (m.began || m.version > 1) { // before both there is no version of anything
			names = append(names, kind, versioned(kind, m.version))
		}
	}
	slices.Sort(names)
	return names
}

// permutations calls f with each order of a list.
func permutations(list []string, f func([]string)) {
	var next func(int)
	next = func(n int) {
		if n == len(list) {
			f(slices.Clone(list))
		}
		for i := n; i < len(list); i++ {
			list[n], list[i] = list[i], list[n]
			next(n + 1)
			list[n], list[i] = list[i], list[n]
		}
	}
	next(0)
}

// TestEveryOrderOfHooks leads to what the model says, after each step, and what is checked is what is registered.
func TestEveryOrderOfHooks(t *testing.T) {
	t.Parallel()
	for _, list := range [][]string{
		{"Prerun", "Update", "PreKill", "Postrun", "restart", "Shutdown"},
		{"Prerun", "start", "Update", "exit", "Postrun", "restart"},
		{"Prerun", "start", "restart", "kill", "start", "PreKill"},
	} {
		permutations(list, func(order []string) {
			h, m := newHooked(registrationtest.New("nomad", nil)), &model{version: 1}
			steps := h.steps(t.Context(), false)
			for i, step := range order {
				m.step(step)
				if err := steps[step](); err != nil {
					t.Fatalf("%s: %v", order[:i+1], err)
				}
				if got, want := h.provider.Names(), m.names(); !slices.Equal(got, want) {
					t.Fatalf("%s: known are %q, want %q", order[:i+1], got, want)
				}
				if shown := h.shown(); len(shown) > 0 && (m.ended || m.left || !m.began) {
					t.Fatalf("%s: checks of %q are shown", order[:i+1], shown)
				}
			}
			h.hook.Shutdown()
		})
	}
}

// TestHooksAtOnce, in any order, by any number of goroutines, leave known what is to be known, and no provider hears of
// one service twice at once.
func TestHooksAtOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		h := newHooked(registrationtest.New("nomad", nil))
		steps := h.steps(ctx, false)
		do := func(step string) {
			if err := steps[step](); err != nil {
				t.Fatal(step, err)
			}
		}
		if rapid.Bool().Draw(t, "prerun first") {
			do("Prerun")
		} else {
			defer h.hook.Shutdown()
		}
		var all sync.WaitGroup
		names := rapid.SliceOfN(rapid.SampledFrom([]string{"Update", "restart", "start", "kill", "exit", "PreKill"}), 1,
			12).Draw(t, "steps")
		for _, name := range names {
			all.Go(func() { do(name) })
		}
		all.Wait()
		if ending := slices.Contains(names, "PreKill"); ending && slices.ContainsFunc(h.provider.Names(), isGroups) {
			t.Fatalf("after PreKill known are %q", h.provider.Names())
		}
		must.OK(t, h.provider.Broken())
		phase := h.hook.registrar.State("t").Phase
		for _, name := range h.provider.Names() {
			if phase != registration.Registered && !isGroups(name) {
				t.Fatalf("%s is known of a task that has left", name)
			}
			if base := strings.TrimRight(name, "0123456789"); base != name && name != versioned(base, h.version) {
				t.Fatalf("%s is known of an older version than %d", name, h.version)
			}
		}
		if rapid.Bool().Draw(t, "detach") {
			before := h.provider.Names()
			do("Shutdown")
			if after := h.provider.Names(); !slices.Equal(before, after) {
				t.Fatalf("left %q, of %q", after, before)
			}
			return
		}
		do("Postrun")
		if left := h.provider.Names(); len(left) > 0 {
			t.Fatalf("left known: %q", left)
		}
	})
}

func isGroups(name string) bool { return strings.HasPrefix(name, "group") }

// TestTheNextRunner finds what the one before has registered, and registered again for a restart: it stays known
// throughout, what the job has no more goes, and what became of the task decides about the task's.
func TestTheNextRunner(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"exit", "start"} {
		provider := registrationtest.New("nomad", nil)
		first := newHooked(provider)
		steps := first.steps(t.Context(), false)
		for _, step := range []string{"Prerun", "start", "restart", "Shutdown", "kill"} {
			must.OK(t, steps[step]())
		}
		if got, want := provider.Took(), []string{"+group", "+group1", "+task", "+task1", "-group", "-group1", "+group",
			"+group1"}; !slices.Equal(got, want) {
			t.Fatalf("called with %q, want %q", got, want)
		}
		next := newHooked(provider)
		next.version = 2
		steps = next.steps(t.Context(), true)
		must.OK(t, steps["Prerun"]())
		same.As(t, []string{"+group", "+group2", "-group1", "-task1"}, provider.Took(), "called at the start with")
		if end == "start" {
			must.Get(next.task.Prestart(t.Context(), &interfaces.TaskPrestartRequest{Restored: true}))(t)
			same.As(t, []string{"+task", "+task2"}, provider.Took(), "called for the task that runs with")
		} else {
			must.OK(t, steps["exit"]())
			same.As(t, []string{"-task"}, provider.Took(), "called for the task that has ended with")
		}
		if err := steps["Postrun"](); err != nil || len(provider.Names()) > 0 {
			t.Errorf("left known: %q, %v", provider.Names(), err)
		}
	}
}

// refusing is an allocation whose first version can't be set up.
type refusing struct{ served }

func (r refusing) services(alloc *api.Allocation) (services.Owned, error) {
	if slices.Equal(alloc.Job.TaskGroups[0].Services[0].Tags, []string{"v1"}) {
		return nil, errors.New("there is no provider here")
	}
	return r.served.services(alloc)
}

// TestServicesThatAreSetUpLate by an update of an allocation that was resumed without them: what is registered stays
// until then, and what the update has is registered and checked, also for the task that runs.
func TestServicesThatAreSetUpLate(t *testing.T) {
	t.Parallel()
	for _, started := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			provider := registrationtest.New("nomad", nil)
			first := newHooked(provider)
			next := newHooked(provider)
			next.hook.alloc = refusing{served{next.hook.logger}}
			defer next.hook.Shutdown()
			for _, step := range []string{"Prerun", "start", "Shutdown"} {
				must.OK(t, first.steps(t.Context(), false)[step]())
			}
			provider.Took()
			do := func(step string) {
				t.Helper()
				if err := next.steps(t.Context(), true)[step](); err != nil {
					t.Fatal(step, err)
				}
			}
			prestart := func() {
				must.Get(next.task.Prestart(t.Context(), &interfaces.TaskPrestartRequest{Restored: true}))(t)
			}
			do("Prerun")
			if started {
				prestart()
			}
			if got, shown := provider.Took(), next.shown(); len(got)+len(shown) != 0 {
				t.Errorf("called with %q, %q shown, want nothing", got, shown)
			}
			do("Update")
			if !started {
				prestart()
			}
			same.As(t, []string{"group", "group2", "task", "task2"}, provider.Names(), "known")
			if got := provider.Took(); slices.Contains(got, "-group") || slices.Contains(got, "-task") {
				t.Errorf("what runs has left: %q", got)
			}
			do("Update") // as every other
			same.As(t, []string{"group", "group3", "task", "task3"}, provider.Names(), "known")
			time.Sleep(2 * time.Hour) // of the bubble: longer than the interval
			results, _ := next.hook.results()
			if len(results) != 4 {
				t.Errorf("results %v, want four", results)
			}
			for _, r := range results {
				if r.Status != "failure" { // nobody listens
					t.Errorf("the check of %s is %s, and has not run", r.Service, r.Status)
				}
			}
			do("PreKill")
			same.As(t, []string{"task", "task3"}, provider.Names(), "known")
		})
	}
}

// TestAResumedAllocationThatIsToStop registers nothing: the group's services go at once, and a task's before its kill.
func TestAResumedAllocationThatIsToStop(t *testing.T) {
	t.Parallel()
	provider := registrationtest.New("nomad", nil)
	first := newHooked(provider)
	steps := first.steps(t.Context(), false)
	for _, step := range []string{"Prerun", "start", "Shutdown"} {
		must.OK(t, steps[step]())
	}
	provider.Took()
	next := newHooked(provider)
	must.OK(t, next.hook.Ending(t.Context(), &interfaces.RunnerPrerunRequest{Alloc: servedVersion(1),
		Restored: true}))
	next.hook.groupEnded(false)
	same.As(t, []string{"-group", "-group1"}, provider.Took(), "called with")
	next.hook.PreKill()
	must.OK(t, next.task.PreKilling(t.Context()))
	same.As(t, []string{"-task", "-task1"}, provider.Took(), "called with")
	if err := next.hook.Postrun(t.Context()); err != nil || len(provider.Names()) > 0 {
		t.Errorf("left known: %q, %v", provider.Names(), err)
	}
}

// TestAKillBeforeTheHooksOfARunningTask: the hooks of a process that outlived its runner may run while it is being
// stopped. They register nothing then.
func TestAKillBeforeTheHooksOfARunningTask(t *testing.T) {
	t.Parallel()
	provider := registrationtest.New("nomad", nil)
	first, next := newHooked(provider), newHooked(provider)
	defer next.hook.Shutdown()
	resume := func() error {
		_, err := next.task.Prestart(t.Context(), &interfaces.TaskPrestartRequest{Restored: true})
		return err
	}
	before, after := first.steps(t.Context(), false), next.steps(t.Context(), true)
	for _, step := range []func() error{before["Prerun"], before["start"], before["Shutdown"], after["Prerun"],
		after["kill"], resume} {
		must.OK(t, step())
	}
	same.As(t, []string{"group", "group1"}, provider.Names(), "known")
	must.OK(t, errors.Join(after["exit"](), after["start"]()))
	same.As(t, []string{"group", "group1", "task", "task1"}, provider.Names(), "after the next start known")
}
