package stats_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"taskapi/allocrunner/internal/proctree"
	"taskapi/allocrunner/internal/stats"
	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// BenchmarkSample is what one sample costs, with the processes found in a cgroup, beside the reading of the same files.
func BenchmarkSample(b *testing.B) {
	for _, n := range []int{1, 10, 100, 5000} {
		dir := stats.OwnDir("")
		if dir == "" {
			b.Skip("no cgroup of version 2 is mounted here")
		}
		parent := dir + "/taskapi-stats-bench-" + strconv.Itoa(os.Getpid())
		group := parent + "/task.a"
		if err := os.MkdirAll(group, 0o755); err != nil {
			b.Skip(err)
		}
		script := fmt.Sprintf(`echo $$ > %s/cgroup.procs; i=1; while [ $i -lt %d ]; do sleep 1000 & i=$((i+1)); done; `+
			`echo; exec sleep 1000`, group, n)
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out := must.Get(cmd.StdoutPipe())(b)
		must.OK(b, cmd.Start())
		b.Cleanup(func() {
			_ = os.WriteFile(group+"/cgroup.kill", []byte("1"), 0)
			_ = cmd.Wait()
			for os.Remove(group) != nil && len(proctree.PIDsBelow(group)) > 0 {
			}
			_ = os.Remove(parent)
		})
		if _, err := out.Read(make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		p := must.Get(proc.Read(cmd.Process.Pid))(b)
		view := proctree.View{Supervisor: os.Getpid(), Cgroup: parent,
			Roots: []proctree.ViewRoot{{Task: "a", PID: p.PID, Start: p.Start, Fenced: true}}}
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			s := stats.New(stats.Config{Logger: slog.New(slog.DiscardHandler),
				Tasks: func(context.Context) (stats.Tasks, error) {
					return stats.Tasks{View: view}, nil
				}})
			for b.Loop() {
				must.OK(b, s.Measure(b.Context()))
			}
		})
		b.Run(fmt.Sprintf("%d-bare", n), func(b *testing.B) {
			for b.Loop() {
				for _, pid := range proctree.PIDsBelow(group) {
					if _, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := os.ReadFile(group + "/cpu.stat"); err != nil {
					b.Fatal(err)
				}
			}
		})
		_ = os.WriteFile(group+"/cgroup.kill", []byte("1"), 0)
		_ = cmd.Wait()
	}
}
