package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// sleeperTasks returns the blocks of n tasks, t0 and on. Each has a token and does nothing.
func sleeperTasks(n int) string {
	var tasks strings.Builder
	for i := range n {
		fmt.Fprintf(&tasks, "task \"t%d\" {\n driver = \"raw_exec\"\n identity {\n file = true\n }\n config {\n command = "+
			"\"/bin/sleep\"\n args = [\"1000\"]\n }\n }\n", i)
	}
	return tasks.String()
}

// TestMemoryAtRest of taskapi and its keeper, without the pages of the program's file: 9 MiB, once the start is over
// and the allocation is healthy.
func TestMemoryAtRest(t *testing.T) {
	t.Parallel()
	const most = 14 << 20
	dir := shortDir(t)
	built := must.Get(os.ReadFile(buildNext(t)))(t) // the race detector takes three times as much
	program := filepath.Join(dir, "taskapi")
	must.Program(t, program, built)
	job := "job \"rest\" {\n group \"g\" {\n update {\n min_healthy_time = \"1s\"\n }\n" + sleeperTasks(3) + "}\n}\n"
	p := startProgram(t, program, dir, jobFile(t, job))
	r := &running{t: t, layout: datadir.Dir(dir)}
	until(t, p, "the tasks run", func() bool { return strings.Count(p.out.String(), "Started") == 3 })
	operator := r.client(r.layout.OperatorSocket(testAllocID), r.file("operator.token"))
	until(t, p, "healthy", func() bool {
		alloc, _, err := operator.Allocations().Info(testAllocID, nil)
		return err == nil && alloc.DeploymentStatus != nil && *alloc.DeploymentStatus.Healthy
	})
	operator.Close()
	until(t, p, "at rest", func() bool {
		all := must.Get(proc.All())(t)
		processes, sum := 0, uint64(0)
		for _, stat := range all {
			if stat.PID == p.Process.Pid || stat.Parent == p.Process.Pid {
				processes++
				sum += proc.Bytes(proc.Value(fmt.Sprintf("/proc/%d/status", stat.PID), "RssAnon"))
			}
		}
		return processes == 2 && sum < most
	})
	endsOf(t, p, syscall.SIGTERM)
}

// TestMemoryOfHostileTasks: however many tasks ask for long lists of files, and for a file, and don't read them, the
// agent takes no more than 150 MB, answers another task, and gives the memory back when they have gone.
func TestMemoryOfHostileTasks(t *testing.T) {
	t.Parallel()
	const hostile, most = 8, 150 << 20
	dir := shortDir(t)
	file := jobFile(t, "job \"crowd\" {\n group \"g\" {\n"+
		sleeperTasks(hostile+1)+"}\n}\n")
	p := startProcess(t, dir, file)
	r := &running{t: t, layout: datadir.Dir(dir)}
	until(t, p, "all tasks run", func() bool {
		_, err := os.Stat(r.allocDir("operator.token"))
		return err == nil && strings.Count(p.out.String(), "Started") == hostile+1
	})
	operator := r.client(r.layout.OperatorSocket(testAllocID), r.file("operator.token"))
	memory := func() (bytesInUse float64) {
		text := must.Get(operator.Operator().Metrics(&api.QueryOptions{Params: map[string]string{"format": "prometheus"}}))(t)
		for line := range bytes.Lines(text) {
			var value float64
			if n, _ := fmt.Sscanf(string(line), "go_memstats_sys_bytes %g", &value); n == 1 {
				bytesInUse += value
			}
			if n, _ := fmt.Sscanf(string(line), "go_memstats_heap_released_bytes %g", &value); n == 1 {
				bytesInUse -= value
			}
		}
		return bytesInUse
	}
	bad := r.allocDir("alloc", "data", "bad")
	must.OK(t, os.Mkdir(bad, 0o755))
	for i := range 2_400 { // as many as are listed, of names that JSON makes six times as long
		writeFile(t, filepath.Join(bad, fmt.Sprintf("%05d", i)+strings.Repeat("\x01", 245)), "")
	}
	writeFile(t, r.allocDir("alloc", "data", "big"), strings.Repeat("x", 4<<20))

	var conns []net.Conn
	for i := range hostile {
		task := fmt.Sprintf("t%d", i)
		for k := range 40 {
			c := must.Get(net.Dial("unix", r.allocDir(task, "secrets", "api.sock")))(t)
			defer c.Close()
			path := []string{"ls/%s?path=alloc/data/bad", "stream/%s?path=alloc/data/big"}[k%2]
			_, err := fmt.Fprintf(c, "GET /v1/client/fs/"+path+" HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: %s\r\n\r\n", testAllocID,
				r.file(task, "secrets", "nomad_token"))
			must.OK(t, err)
			conns = append(conns, c)
		}
	}
	quiet := fmt.Sprintf("t%d", hostile)
	neighbour := r.client(r.allocDir(quiet, "secrets", "api.sock"), r.file(quiet, "secrets", "nomad_token"))
	for range 50 {
		if _, _, err := neighbour.AllocFS().List(&api.Allocation{ID: testAllocID}, "alloc/logs", nil); err != nil {
			t.Errorf("a neighbour's list: %v", err)
		}
		if _, err := neighbour.Allocations().Checks(testAllocID, nil); err != nil {
			t.Errorf("a neighbour's checks: %v", err)
		}
	}
	begin := make([]byte, 1)
	if _, err := conns[0].Read(begin); err != nil {
		t.Errorf("the first list: %v", err)
	}
	if got := memory(); got > most {
		t.Errorf("%.0f MB are in use, want at most %d", got/(1<<20), most>>20)
	}
	for _, c := range conns {
		c.Close()
	}
	until(t, p, "the memory is given back", func() bool { return memory() < 40<<20 })
	endsOf(t, p, syscall.SIGTERM)
}
