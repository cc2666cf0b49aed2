package follow

import (
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
)

// Labels name allocations whose lines are printed beside one another: GROUP[N] if all are of one job, else
// JOB.GROUP[N]. The column of names is wide enough for all.
type Labels struct {
	Colors output.Colors // of what Out leads to

	oneJob bool
	width  int
	mu     sync.Mutex // held while a line is written
	out    io.Writer
}

// NewLabels makes labels for allocations that are printed to w's standard output.
func NewLabels(allocs []*api.Allocation, w base.Environment) *Labels {
	l := &Labels{Colors: w.Colors(), out: w.Stdout}
	allocs = slices.DeleteFunc(slices.Clone(allocs), func(a *api.Allocation) bool { return a == nil })
	l.oneJob = !slices.ContainsFunc(allocs, func(a *api.Allocation) bool { return a.JobID != allocs[0].JobID })
	for _, a := range allocs {
		l.width = max(l.width, len(l.Of(a)))
		for _, task := range base.TaskNames(a) {
			l.width = max(l.width, len(l.Of(a)+"/"+task))
		}
	}
	return l
}

// Of returns the label of an allocation.
func (l *Labels) Of(alloc *api.Allocation) string {
	if l.oneJob {
		return strings.TrimPrefix(alloc.Name, alloc.JobID+".")
	}
	return alloc.Name
}

// Write writes whole lines.
func (l *Labels) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

// Apply names the allocation in what a printer prints. Without labels it does nothing.
func (l *Labels) Apply(p *Printer, alloc *api.Allocation) {
	if l != nil {
		p.Label, p.Colors = l.Of(alloc), l.Colors
		p.Widen(l.width)
	}
}
