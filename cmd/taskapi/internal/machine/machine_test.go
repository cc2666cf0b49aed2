package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster/fleet"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/ptr"
)

// newTest returns a machine with a data directory, which serves nothing.
func newTest(t *testing.T) *Machine {
	t.Helper()
	dir := datadir.Dir(t.TempDir())
	must.OK(t, dir.Make())
	return New(Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
}

// end saves an allocation that has ended.
func (m *Machine) end(t *testing.T, id, job string) { m.save(t, id, job, true) }

// save saves an allocation that has ended, or has no process and has not ended. That of the job "sticky" has sticky
// data.
func (m *Machine) save(t *testing.T, id, job string, ended bool) {
	t.Helper()
	status := api.AllocClientStatusRunning
	if ended {
		status = api.AllocClientStatusComplete
	}
	must.OK(t, os.MkdirAll(m.cfg.Dir.Alloc(id), 0o700))
	store := must.Get(m.cfg.Dir.Store("test").Acquire(id))(t)
	group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{{Name: "t", Driver: "raw_exec"}}}
	if job == "sticky" {
		group.EphemeralDisk = &api.EphemeralDisk{Sticky: new(true)}
		must.OK(t, os.MkdirAll(filepath.Join(m.cfg.Dir.Alloc(id), "alloc", "data", "of a task"), 0o700))
	}
	state := &api.TaskState{State: "dead"}
	for range 10 {
		state.Events = append(state.Events, &api.TaskEvent{Type: api.TaskStarted, DisplayMessage: "Task started by client"})
	}
	must.OK(t, store.Put(interfaces.Saved{
		Alloc: &api.Allocation{
			ID: id, Name: job + ".g[0]", JobID: job, Namespace: api.DefaultNamespace, TaskGroup: "g",
			ClientStatus: status, ModifyIndex: 7, CreateIndex: 1, CreateTime: 1,
			Job: &api.Job{ID: &job, Name: &job, Namespace: new(api.DefaultNamespace), TaskGroups: []*api.TaskGroup{group}},
		},
		Tasks:    map[string]interfaces.SavedTask{"t": {State: state}},
		Terminal: ended, Life: "life",
	}))
	must.OK(t, store.Close())
}

func idOf(n int) string { return fmt.Sprintf("%08d-0000-4000-8000-000000000000", n) }

// TestManyEnded: a thousand allocations that have ended take little memory, and none of them a goroutine. They are
// listed, and found by their jobs.
func TestManyEnded(t *testing.T) {
	const many = 1000
	m := newTest(t)
	for i := range many {
		m.end(t, idOf(i), fmt.Sprintf("job-%d", i%100))
	}
	goroutines := runtime.NumGoroutine()
	before := live()
	must.OK(t, m.look(t.Context()))
	if took := live() - before; took > many*2<<10 {
		t.Errorf("they take %d bytes each, want at most 2048", took/many)
	}
	if now := runtime.NumGoroutine(); now > goroutines {
		t.Errorf("they take %d goroutines", now-goroutines)
	}
	all, err := m.Allocations(t.Context())
	if err != nil || len(all) != many {
		t.Fatalf("%d are listed, %v", len(all), err)
	}
	of, err := m.OfJob(t.Context(), api.DefaultNamespace, "job-7")
	if err != nil || len(of) != many/100 || ptr.Deref(of[0].Job.ID) != "job-7" || len(of[0].TaskStates) != 1 {
		t.Errorf("job-7 has %d allocations, %v", len(of), err)
	}
	runtime.KeepAlive(m)
}

// live returns the bytes that are in use.
func live() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// TestRegisterWithoutRoom: a registration that can't begin anything says so, and is no fault of the client.
func TestRegisterWithoutRoom(t *testing.T) {
	m := newTest(t)
	m.cfg.Environ = []string{"MACHINE_TEST_FAILS=no space left on device"}
	_, err := m.Register(t.Context(), &api.Job{ID: new("job"), Namespace: new(api.DefaultNamespace)},
		func([]*api.Allocation) error { return nil })
	known := apierror.Of(err)
	if known.Kind != apierror.Unavailable || known.Message != "no space left on device" {
		t.Errorf("it answers %q, %v", known.Message, err)
	}
}

// TestRegisterWhatEndsAtOnce: a registration that has begun an allocation does not ask the client for another attempt,
// also when the allocation is ending before anybody has seen it.
func TestRegisterWhatEndsAtOnce(t *testing.T) {
	m := newTest(t)
	m.cfg.Environ = []string{"MACHINE_TEST_FAILS=the task failed to start"}
	m.end(t, idOf(1), "job")
	m.entries[idOf(1)] = &entry{}
	leaving := must.Get(m.cfg.Dir.Store("test").Acquire(idOf(1)))(t)
	result, err := m.Register(t.Context(), &api.Job{ID: new("job"), Namespace: new(api.DefaultNamespace)},
		func([]*api.Allocation) error {
			time.AfterFunc(100*time.Millisecond, func() { _ = leaving.Close() })
			return nil
		})
	if err != nil {
		t.Fatalf("it is refused: %v", err)
	}
	if err := <-result; err == nil || err.Error() != "the task failed to start" {
		t.Errorf("it ends with %v", err)
	}
}

// told is a log that tells of each record.
type told chan string

func (told) Enabled(context.Context, slog.Level) bool { return true }

func (l told) Handle(_ context.Context, r slog.Record) error {
	l <- r.Message
	return nil
}

func (l told) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l told) WithGroup(string) slog.Handler      { return l }

// TestResumesEnd: an allocation whose taskapi exits again and again is resumed eight times, at growing intervals. Then
// the log says that the agent gives the allocation up.
func TestResumesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTest(t)
		m.save(t, idOf(1), "job", false)
		log := make(told, 100)
		m.cfg.Resume, m.cfg.Logger = true, slog.New(log)
		m.cfg.Environ = []string{"MACHINE_TEST_FAILS=no space left on device"}
		m.entries[idOf(1)] = &entry{}
		ctx, cancel := context.WithCancel(t.Context())
		m.followLocked(ctx, idOf(1))
		resumes, last := 0, time.Now()
		for message := range log {
			if strings.HasPrefix(message, "resuming") {
				if pause := time.Since(last); pause != resumeGrace<<resumes {
					t.Errorf("resume %d comes after %v", resumes+1, pause)
				}
				resumes, last = resumes+1, time.Now()
			}
			if strings.Contains(message, "not resumed any more") {
				break
			}
		}
		if resumes != 8 {
			t.Errorf("it was resumed %d times, want 8", resumes)
		}
		cancel()
		m.follows.Wait()
		for len(log) > 0 {
			t.Errorf("after it was given up: %s", <-log)
		}
	})
}

// TestCommandsInputOutlivesThisProcess: a command gets all of its input, also when it has read nothing before this
// process is killed.
func TestCommandsInputOutlivesThisProcess(t *testing.T) {
	dir := t.TempDir()
	killed := exec.CommandContext(t.Context(), "/proc/self/exe")
	killed.Env = []string{"MACHINE_TEST_KILLED=" + dir}
	must.OK(t, killed.Start())
	if !polltest.Until(func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil }) {
		t.Fatal("the command does not begin")
	}
	_ = killed.Process.Kill()
	_ = killed.Wait()
	var got string
	polltest.Until(func() bool {
		read, err := os.ReadFile(filepath.Join(dir, "read"))
		got = string(read)
		return err == nil && got != ""
	})
	if got != strconv.Itoa(muchInput) {
		t.Errorf("the command has read %s of %d bytes", got, muchInput)
	}
}

// muchInput is more than a pipe holds.
const muchInput = 1 << 20

// isKilled runs a command, and is killed meanwhile.
func isKilled(dir string) error {
	m := New(Config{Dir: datadir.Dir(dir), Logger: slog.New(slog.DiscardHandler),
		Environ: []string{"MACHINE_TEST_ORPHAN=" + dir, "MACHINE_TEST_PARENT=" + strconv.Itoa(os.Getpid())}})
	return m.command(context.Background(), make([]byte, muchInput), "run")
}

// readsAsOrphan reads its input when its parent has been killed, and notes how much there was.
func readsAsOrphan(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "begun"), nil, 0o600); err != nil {
		return err
	}
	for os.Getenv("MACHINE_TEST_PARENT") == strconv.Itoa(os.Getppid()) {
		time.Sleep(time.Millisecond)
	}
	n, err := io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "read"), []byte(strconv.FormatInt(n, 10)), 0o600))
}

// TestMain is this program, a taskapi that fails, that of TestCollects, or one of TestCommandsInputOutlivesThisProcess.
func TestMain(m *testing.M) {
	for name, role := range map[string]func(string) error{
		"MACHINE_TEST_KILLED": isKilled, "MACHINE_TEST_ORPHAN": readsAsOrphan,
		"MACHINE_TEST_GC": func(string) error { return collects(os.Args) },
	} {
		if dir := os.Getenv(name); dir != "" {
			if role(dir) != nil {
				unix.Exit(1) // os.Exit would let the race detector sleep for a second
			}
			unix.Exit(0)
		}
	}
	if why := os.Getenv("MACHINE_TEST_FAILS"); why != "" {
		fmt.Fprintln(os.Stderr, "taskapi: "+why)
		unix.Exit(1)
	}
	os.Exit(m.Run())
}

// TestLinksAreNoAllocations: a link in the directory of allocations, and a file with an allocation's ID, are nothing.
// Nor is a directory whose state is another allocation's.
func TestLinksAreNoAllocations(t *testing.T) {
	m := newTest(t)
	m.end(t, idOf(1), "job")
	elsewhere := t.TempDir()
	must.OK(t, os.Symlink(elsewhere, m.cfg.Dir.Alloc(idOf(2))))
	must.OK(t, os.WriteFile(m.cfg.Dir.Alloc(idOf(3)), nil, 0o600))
	must.OK(t, os.CopyFS(m.cfg.Dir.Alloc(idOf(4)), os.DirFS(m.cfg.Dir.Alloc(idOf(1)))))
	ctx, cancel := context.WithCancel(t.Context())
	m.self.ctx = ctx
	defer m.follows.Wait()
	defer cancel()
	all, err := m.Allocations(ctx)
	if err != nil || len(all) != 1 || all[0].ID != idOf(1) {
		t.Errorf("allocations %v, %v", all, err)
	}
	for _, id := range []string{idOf(2), idOf(3), idOf(4), "../../etc", ""} {
		if found, err := m.Find(ctx, id); found != nil || err != nil {
			t.Errorf("%q is found: %v, %v", id, found, err)
		}
	}
}

// TestIndexNeverGoesBack: the index grows with each change, whatever the clock says.
func TestIndexNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Machine{entries: map[string]*entry{}, changed: make(chan struct{})}
		m.grow()
		last := m.Index()
		if last != uint64(time.Now().UnixMilli()) {
			t.Errorf("the first index is %d", last)
		}
		woken := make(chan uint64)
		go func() {
			m.Wait(t.Context(), last)
			woken <- m.Index()
		}()
		synctest.Wait()
		for range 5 {
			m.grow()
			if now := m.Index(); now <= last {
				t.Errorf("the index goes from %d to %d", last, now)
			} else {
				last = now
			}
		}
		<-woken
	})
}

// TestFleet: the list has the allocations of other machines, and a query that waits is woken by them.
func TestFleet(t *testing.T) {
	store := memory.New()
	defer store.Close()
	m := New(Config{Dir: newTest(t).cfg.Dir, Logger: slog.New(slog.DiscardHandler), Cluster: store, Clustered: true})
	before, err := m.Elsewhere(t.Context())
	if err != nil || len(before) != 0 {
		t.Fatalf("%v, %v", before, err)
	}
	index := m.Index()
	woken := make(chan struct{})
	go func() {
		m.Wait(t.Context(), index)
		close(woken)
	}()
	publishing, end := context.WithCancel(t.Context())
	var published sync.WaitGroup
	defer published.Wait()
	defer end()
	for _, node := range []string{"another node", m.self.alloc.NodeID} {
		p := &fleet.Publisher{
			Store: store, Logger: slog.New(slog.DiscardHandler), Alloc: source{&api.Allocation{
				ID: idOf(len(node)), NodeID: node, JobID: "job", Job: &api.Job{ID: new("job")}, ModifyIndex: 1,
			}},
			Node: func() *api.Node { return &api.Node{ID: node} },
		}
		published.Go(func() { p.Run(publishing) })
	}
	<-woken
	if !polltest.Until(func() bool {
		all, err := m.Elsewhere(t.Context())
		return err == nil && len(all) == 1 && all[0].NodeID == "another node"
	}) {
		t.Error("the other machine's allocation is not listed")
	}
	if where := m.elsewhere(t.Context(), idOf(len("another node"))); !strings.Contains(where, "node another node") {
		t.Errorf("it is %q", where)
	}
}

// source is an allocation that does not change.
type source struct{ alloc *api.Allocation }

func (s source) Alloc() *api.Allocation { return s.alloc }

func (s source) Wait(ctx context.Context, _ uint64) *api.Allocation {
	<-ctx.Done()
	return s.alloc
}

// TestAnswersThatAreOvertaken change nothing.
func TestAnswersThatAreOvertaken(t *testing.T) {
	m := newTest(t)
	m.entries["a"] = &entry{}
	m.set("a", &api.Allocation{ID: "a", ModifyIndex: 9}, false)
	index := m.Index()
	m.set("a", &api.Allocation{ID: "a", ModifyIndex: 8}, false)
	if m.entries["a"].alloc.ModifyIndex != 9 || m.Index() != index {
		t.Errorf("the allocation is %+v, and the index goes from %d to %d", m.entries["a"].alloc, index, m.Index())
	}
	m.set("gone", &api.Allocation{ID: "gone"}, false)
	if len(m.entries) != 1 {
		t.Error("an allocation that was removed is back")
	}
}

// TestTLSFiles: what is wrong with a file of --listen is said.
func TestTLSFiles(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		TLS
		want string
	}{
		{TLS{Address: "here"}, "no address with a port"},
		{TLS{Address: "127.0.0.1:0", Key: none, Cert: none, CA: none}, "key " + none + ": no such file"},
	} {
		if err := c.Open(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.TLS, err, c.want)
		}
	}
}
