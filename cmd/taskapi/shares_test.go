package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
	"taskapi/socket"
)

const (
	maxConnections  = 1024 // of all sockets together
	taskConnections = 16   // what each task is sure of
)

// TestNoTaskTakesAllConnections: four tasks that open all the connections they get shut out neither the operator nor
// another task.
func TestNoTaskTakesAllConnections(t *testing.T) {
	t.Parallel()
	names := []string{"server", "other", "t2", "t3", "t4"}
	user, dir := "", shortDir(t)
	if os.Geteuid() == 0 { // a task's user is another than its operator's, as a rule
		user = "user = \"nobody\"\n"
		must.OK(t, os.Chmod(dir, 0o711))
	}
	var tasks strings.Builder
	for _, name := range names {
		fmt.Fprintf(&tasks, "task %q {\n "+user+"driver = \"raw_exec\"\n identity {\n file = true\n }\n config {\n command "+
			"= \"/bin/sleep\"\n args = [\"1000\"]\n }\n }\n", name)
	}
	r := startRun(t, dir, "job \"crowd\" {\n group \"g\" {\n"+tasks.String()+"}\n}\n")
	r.operator()
	r.eventually("all tasks run", func() bool {
		alloc, _, err := r.operator().Allocations().Info(testAllocID, nil)
		return err == nil && alloc.ClientStatus == api.AllocClientStatusRunning && len(alloc.TaskStates) == len(names)
	})
	opened := 0
	for _, name := range names[:4] {
		path := r.allocDir(name, "secrets", "api.sock")
		for range 256 {
			c := must.Get(socket.Dial(context.Background(), path))(t)
			t.Cleanup(func() { c.Close() })
			opened++
		}
	}
	r.eventually("the sockets have taken or refused all", func() bool {
		stats := metrics(t, r)
		refused := stats["taskapi_socket_connections_refused_total"]
		return stats["taskapi_socket_connections_accepted_total"]+refused >= float64(opened)
	})
	if stats := metrics(t, r); stats["taskapi_socket_connections_open"] > maxConnections ||
		stats["taskapi_socket_connections_refused_total"] == 0 {
		t.Errorf("%v open, %v refused; want some refused and at most %d open", stats["taskapi_socket_connections_open"],
			stats["taskapi_socket_connections_refused_total"], maxConnections)
	}
	taskapi(t, "status", "--data-dir", string(r.layout), testAllocID)
	for range taskConnections - 1 { // and one for the client
		c := must.Get(socket.Dial(context.Background(), r.allocDir("t4", "secrets", "api.sock")))(t)
		t.Cleanup(func() { c.Close() })
	}
	client := r.client(r.allocDir("t4", "secrets", "api.sock"), r.file("t4", "secrets", "nomad_token"))
	if _, err := client.Status().Leader(); err != nil {
		t.Errorf("another task: %v", err)
	}
	taskapi(t, "stop", "--data-dir", string(r.layout), testAllocID)
}

// TestConnectionsAreASetting: a task's socket takes as many as the limits say, and the operator's more.
func TestConnectionsAreASetting(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob, "-o", "limits.connections=8", "-o", "limits.streams=2", "-o", "limits.waits=2")
	r.operator()
	path := r.allocDir("other", "secrets", "api.sock")
	for range 20 {
		for _, path := range []string{path, r.allocDir("operator.sock")} {
			c := must.Get(socket.Dial(context.Background(), path))(t)
			t.Cleanup(func() { c.Close() })
		}
	}
	r.eventually("the sockets have taken or refused all", func() bool {
		return metrics(t, r)["taskapi_socket_connections_refused_total"] == 12
	})
	taskapi(t, "stop", "--data-dir", string(r.layout), testAllocID)
}

// metrics returns what the operator reads of counters and gauges without labels.
func metrics(t *testing.T, r *running) map[string]float64 {
	t.Helper()
	summary := asked(r.operator().Operator().MetricsSummary(nil))(t)
	all := map[string]float64{}
	for _, g := range summary.Gauges {
		all[g.Name] = float64(g.Value)
	}
	for _, c := range summary.Counters {
		all[c.Name] = c.Sum
	}
	return all
}
