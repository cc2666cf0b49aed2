package proctree_test

import (
	"bufio"
	"strconv"
	"strings"
	"testing"

	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
	"taskapi/internal/proc"
	"taskapi/internal/same"
)

// allowed returns the CPUs that a task's shell says it may use.
func (e *env) allowed(name string, r *bufio.Reader) string {
	e.t.Helper()
	task := e.start(name, `grep Cpus_allowed_list /proc/self/status >$FIFO; exec sleep 1000`)
	line, err := r.ReadString('\n')
	must.OK(e.t, err)
	if err := task.Unlimited(); err != nil {
		e.t.Errorf("not bounded: %v", err)
	}
	_, list, _ := strings.Cut(line, ":")
	return strings.TrimSpace(list)
}

// TestTaskStaysOnItsCores, and one without cores may use all.
func TestTaskStaysOnItsCores(t *testing.T) {
	e := limited(t, 20<<20)
	if err := proctree.CanPin(); err != nil {
		t.Skip(err)
	}
	cpus := proc.CPUs()
	r := e.fifo()
	all := e.allowed("all", r)
	last := strconv.Itoa(cpus[len(cpus)-1])
	e.limits.CPUs = last
	same.As(t, last, e.allowed("one", r), "the task may use the CPUs")
	e.limits.CPUs = strconv.Itoa(cpus[0])
	same.As(t, e.limits.CPUs, e.allowed("other", r), "the task may use the CPUs")
	e.limits.CPUs = ""
	same.As(t, all, e.allowed("more", r), "the task may use the CPUs")
	e.limits.CPUs = "4000"
	if task := e.start("none", "exec sleep 1000"); task.Unlimited() == nil {
		t.Error("a CPU that the machine lacks is no error")
	}
}
