package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestCollects: the agent looks at its interval, and runs 'taskapi gc' for what is to be removed, the oldest
// first, until the disk has room. What gc refuses is said once, and keeps nothing else. What runs stays, and what has
// sticky data, of which nothing is said.
func TestCollects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTest(t)
		for i := range 4 {
			m.end(t, idOf(i), fmt.Sprintf("job-%d", i))
		}
		refused := filepath.Join(m.cfg.Dir.Alloc(idOf(0)), "refused")
		must.OK(t, os.WriteFile(refused, nil, 0o600))
		m.save(t, idOf(4), "job-4", false)
		m.end(t, idOf(5), "sticky")
		left := func() (ids string) {
			all, err := m.cfg.Dir.IDs()
			if err != nil {
				t.Error(err)
			}
			for _, id := range all {
				ids += id[7:8]
			}
			return ids
		}
		var disk atomic.Pointer[func() (*api.HostDiskStats, error)]
		m.disk = func(string) (*api.HostDiskStats, error) { return (*disk.Load())() }
		disk.Store(new(func() (*api.HostDiskStats, error) {
			return &api.HostDiskStats{UsedPercent: float64(40 + 10*len(left()))}, nil
		}))
		log := make(told, 100)
		m.cfg.Logger = slog.New(log)
		m.cfg.Environ = []string{"MACHINE_TEST_GC=1"}
		m.cfg.Settings.GC = datadir.DefaultGC()
		m.cfg.Settings.GC.JobThreshold = 1 << 62
		ctx, cancel := context.WithCancel(t.Context())
		defer m.follows.Wait()
		defer cancel()
		m.entries[idOf(4)] = &entry{alloc: &api.Allocation{ID: idOf(4), JobID: "job-4"}}
		must.OK(t, m.look(ctx))
		m.follows.Go(func() { m.collectEnded(ctx) })
		pass := func(d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			same.As(t, want, left(), "left are")
		}
		pass(time.Minute-1, "012345")
		pass(1, "0345")
		disk.Store(new(func() (*api.HostDiskStats, error) { return &api.HostDiskStats{UsedPercent: 90}, nil }))
		pass(5*time.Minute, "045")
		disk.Store(new(func() (*api.HostDiskStats, error) { return nil, errors.New("no such disk") }))
		pass(5*time.Minute, "045")
		var said []string
		for len(log) > 0 {
			said = append(said, <-log)
		}
		const failed, removed = "ended allocations are not removed", "removed an ended allocation"
		if want := []string{failed, removed, removed, removed, failed}; !slices.Equal(said, want) {
			t.Errorf("the log has %q, want %q", said, want)
		}
	})
}

// TestCollectsNothingThatRunsAgain: what has begun again under its ID since this process has seen its end, and what
// another version replaces, does not count as ended. A dispatch with an idempotency token is known as such.
func TestCollectsNothingThatRunsAgain(t *testing.T) {
	m := newTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer m.follows.Wait()
	defer cancel()
	m.self.ctx = ctx
	m.end(t, idOf(1), "job")
	must.OK(t, m.look(ctx))
	must.OK(t, os.RemoveAll(m.cfg.Dir.Alloc(idOf(1))))
	m.save(t, idOf(1), "job", false)
	m.cfg.Environ, m.cfg.Settings.GC = []string{"MACHINE_TEST_GC=1"}, datadir.DefaultGC()
	m.disk = func(string) (*api.HostDiskStats, error) { return &api.HostDiskStats{UsedPercent: 99}, nil }
	m.collectOnce(ctx, func(what string, err error) {
		if datadir.IsID(what) || err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
	m.set(idOf(1), &api.Allocation{ID: idOf(1), Namespace: "default", JobID: "job"}, false)
	replaced := &api.Allocation{ID: idOf(2), JobID: "replaced"}
	interfaces.StopRequest{ReplacedBy: replaced}.Apply(replaced)
	token := &api.Allocation{ID: idOf(3), JobID: "token", ModifyTime: 7, Job: &api.Job{DispatchIdempotencyToken: new("x")}}
	m.entries[idOf(2)], m.entries[idOf(3)] = newEnded(replaced), newEnded(token)
	ended, others := m.ended(nil)
	slices.Sort(others)
	if want := []string{"/replaced", "default/job"}; !slices.Equal(others, want) {
		t.Errorf("the jobs %q run, want %q", others, want)
	}
	want := []datadir.EndedAlloc{{ID: idOf(3), Job: "/token", End: time.Unix(0, 7), Token: true}}
	if !slices.Equal(ended, want) {
		t.Errorf("%+v have ended, want %+v", ended, want)
	}
	if ended, others = m.ended(map[string]bool{idOf(3): true}); len(ended) > 0 || !slices.Contains(others, "") {
		t.Errorf("with one that is kept, %+v have ended, and the jobs %q run", ended, others)
	}
}

// TestCollectsNoChildThatMayStartAgain: a child that its parent has not noted as started stays.
func TestCollectsNoChildThatMayStartAgain(t *testing.T) {
	m := newTest(t)
	for i := range 4 {
		m.end(t, idOf(i), "parent/dispatch")
		store := must.Get(m.cfg.Dir.Store("test").Acquire(idOf(i)))(t)
		saved := must.Get(store.Load())(t)
		saved.Alloc.Job.ParentID = new("parent")
		saved.Alloc.ModifyIndex++
		must.OK(t, errors.Join(store.Put(*saved), store.Close()))
	}
	for id, alloc := range map[string]*api.Allocation{
		idOf(4): {ID: idOf(4), Namespace: api.DefaultNamespace, JobID: "parent"},
		idOf(5): {ID: idOf(5), Namespace: api.DefaultNamespace, JobID: "other"},
	} {
		m.entries[id] = &entry{alloc: alloc}
		must.OK(t, os.Mkdir(m.cfg.Dir.Alloc(id), 0o700))
	}
	for id, record := range map[string]string{
		idOf(4): `{"starting": {"` + idOf(1) + `": {}}}`,
		idOf(5): `{"starting": {"` + idOf(2) + `": {}}}`,
	} {
		must.OK(t, os.WriteFile(filepath.Join(m.cfg.Dir.Alloc(id), "launches.json"), []byte(record), 0o600))
	}
	m.cfg.Environ, m.cfg.Settings.GC = []string{"MACHINE_TEST_GC=1"}, datadir.DefaultGC()
	m.disk = func(string) (*api.HostDiskStats, error) { return &api.HostDiskStats{UsedPercent: 99}, nil }
	m.self.ctx = t.Context()
	var removed []string
	m.collectOnce(t.Context(), func(what string, err error) {
		if must.OK(t, err); datadir.IsID(what) {
			removed = append(removed, what)
		}
	})
	if want := []string{idOf(0), idOf(2), idOf(3)}; !slices.Equal(removed, want) {
		t.Errorf("%q were removed, want %q", removed, want)
	}
}

// collects is 'taskapi gc' of one allocation, which it refuses if that has a file "refused".
func collects(args []string) error {
	dir := datadir.Dir(strings.TrimPrefix(args[2], "--data-dir=")).Alloc(args[3])
	if _, err := os.Stat(filepath.Join(dir, "refused")); args[1] != "gc" || err == nil {
		return errors.New("refused")
	}
	return os.RemoveAll(dir)
}
