package machine

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// TestLetsAnEndedAllocationGo: an allocation's process exits when its clients have read the end and closed their
// connections. The agent does so.
func TestLetsAnEndedAllocationGo(t *testing.T) {
	m := New(Config{Dir: datadir.Dir(must.ShortDir(t)), Logger: slog.New(slog.DiscardHandler)})
	must.OK(t, m.cfg.Dir.Make())
	id := idOf(1)
	m.save(t, id, "job", false)
	must.OK(t, os.WriteFile(m.cfg.Dir.OperatorToken(id), []byte("token"), 0o600))
	store := must.Get(m.cfg.Dir.Store("test").Acquire(id))(t) // it has the allocation
	t.Cleanup(func() { store.Close() })

	var open, asked atomic.Int64
	version := func(index uint64, status, state string) *api.Allocation {
		group := "g"
		return &api.Allocation{ID: id, Name: "job.g[0]", JobID: "job", Namespace: "default", TaskGroup: group,
			ClientStatus: status, DesiredStatus: "run", ModifyIndex: index,
			TaskStates: map[string]*api.TaskState{"t": {State: state}},
			Job:        &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "t"}}}}}}
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			alloc := version(8, "running", "running")
			if r.URL.Query().Has("index") || asked.Load() > 0 {
				asked.Add(1)
				alloc = version(9, "complete", "dead")
			}
			_ = json.NewEncoder(w).Encode(alloc)
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed:
				open.Add(-1)
			}
		},
	}
	listener := must.Get(net.Listen("unix", m.cfg.Dir.OperatorSocket(id)))(t)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })

	m.entries[id] = &entry{}
	m.followLocked(t.Context(), id)
	if !polltest.Until(func() bool { return asked.Load() > 0 && open.Load() == 0 }) {
		t.Fatalf("after %d answers with the end, %d connections are open", asked.Load(), open.Load())
	}
	must.OK(t, server.Close()) // it exits
	must.OK(t, store.Close())
	m.save(t, id, "job", true)
	m.follows.Wait()
	if !m.entries[id].ended {
		t.Error("the end is not known")
	}
}
