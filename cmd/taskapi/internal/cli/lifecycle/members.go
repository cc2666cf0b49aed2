package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/pflag"

	"taskapi/allocrunner/deployment"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// member is one of the allocations that a job asks for.
type member struct {
	group     *api.TaskGroup
	index     int
	allocName string // JOB.GROUP[N]
}

// label names a member beside others of its job.
func (m member) label() string { return fmt.Sprintf("%s[%d]", *m.group.Name, m.index) }

// membersOf returns the allocations that a job asks for: count of each group, and one of each group of a system job.
// Errors: those of CheckCounts.
func membersOf(job *api.Job, groups []*api.TaskGroup) (all []member, err error) {
	if err := interfaces.CheckCounts(job, groups); err != nil {
		return nil, err
	}
	for _, g := range groups {
		for i := range interfaces.CountOf(job, g) {
			all = append(all, member{g, i, agent.AllocName(*job.ID, *g.Name, i)})
		}
	}
	return all, nil
}

// part is the run of one member, with a process of its own.
type part struct {
	request
	member
	runs bool // a taskapi ran it before
	err  error
}

// partOf returns a part that runs a member of the job that r has loaded. Nothing is changed yet.
func (r *request) partOf(m member, flags *pflag.FlagSet) (*part, error) {
	p := &part{request: *r, member: m}
	if r.text != nil {
		p.environment.Stdin = bytes.NewReader(r.text)
	}
	job := *r.loaded
	job.Group = m.group
	p.loaded = &job
	p.options.Group, p.options.Index = *m.group.Name, m.index
	p.environment.Stderr = &labelled{label: m.label(), out: r.environment.Stderr}
	p.flags = append(slices.Clone(r.flags), "--group="+*m.group.Name, fmt.Sprintf("--index=%d", m.index))
	err := p.read(r.jobFile, flags)
	if err == nil {
		err = p.check()
	}
	return p, err
}

// labelled writes a member's label before each line.
type labelled struct {
	label string
	out   io.Writer
}

func (l *labelled) Write(p []byte) (int, error) {
	var b strings.Builder
	for line := range strings.Lines(string(p)) {
		b.WriteString(l.label + ": " + line)
	}
	_, err := l.out.Write([]byte(b.String()))
	return len(p), err
}

// claim takes the lock on the member's name. Errors: *runsError when a taskapi runs the member already.
func (p *part) claim(ctx context.Context, flags *pflag.FlagSet) error {
	err := p.claimName(ctx, flags)
	if runs, ok := errors.AsType[*runsError](err); ok {
		p.alloc, p.runs = runs.alloc, true
	}
	if err == nil {
		err = p.makeFree(ctx, ctx)
	}
	if err == nil && p.like != nil && p.before == nil {
		err = p.keepSettings()
	}
	if err != nil && p.name != nil {
		_ = p.name.Close() // nothing was written
	}
	return err
}

// maxStarts is how many members are being started at once, until their taskapi answers: each needs a processor.
const maxStarts = 8

// starts says how members are started.
type starts struct {
	flags *pflag.FlagSet
	skip  func() bool                                // reports whether no more are to be started
	done  func(*part, *api.Allocation) (bool, error) // says when one has started
	after func(*part)                                // is called for each when it has started, or failed
}

// start starts members beside one another, each with a process in the background. The error of each is in its err; that
// a member runs already is no error.
func (s starts) start(ctx context.Context, parts []*part) {
	slots := make(chan struct{}, maxStarts)
	each(parts, func(p *part) {
		defer s.after(p)
		if p.runs {
			return
		}
		slots <- struct{}{}
		free := sync.OnceFunc(func() { <-slots })
		defer free()
		if s.skip() {
			p.err = errNotStarted
			return
		}
		p.err = p.claim(ctx, s.flags)
		switch {
		case p.runs: // since a moment, perhaps with another job file
			same, err := runsJob(ctx, p.target(), p.loaded.Job)
			if p.err = nil; err == nil && !same {
				p.err = base.Usagef("it runs another version of the job, as allocation %s", p.alloc.ID)
			}
		case p.err == nil:
			p.err = p.launch(ctx, func(alloc *api.Allocation) (bool, error) {
				free()
				return s.done(p, alloc)
			})
		}
	})
	if len(parts) > 0 {
		_ = parts[0].jobLock.Close() // nothing was written, or update --all has the lock
	}
}

// startAll starts members until ctx ends, each until its tasks have started.
func startAll(ctx context.Context, parts []*part, flags *pflag.FlagSet) {
	starts{
		flags: flags, skip: func() bool { return ctx.Err() != nil }, done: (*part).started, after: func(*part) {},
	}.start(ctx, parts)
}

// errNotStarted means that a signal came before the start.
var errNotStarted = errors.New("not started")

func each[T any](parts []T, do func(T)) {
	var all sync.WaitGroup
	for _, p := range parts {
		all.Go(func() { do(p) })
	}
	all.Wait()
}

// report prints the errors of the parts. It returns the worst exit code as an error, nil if no part has failed.
func report(parts []*part) error {
	worst := base.ExitOK
	for _, p := range parts {
		if p.err == nil {
			continue
		}
		worst = max(worst, base.ExitCode(p.err))
		if !base.IsSilent(p.err) {
			fmt.Fprintf(p.log, "taskapi: %s: %s\n", p.label(), linewriter.Printable(p.err.Error()))
		}
	}
	if worst == base.ExitOK {
		return nil
	}
	return base.ExitError{Code: worst}
}

// numberedAs gives a part the number and the time of a version, which other allocations of the job have, too.
func (p *part) numberedAs(job *api.Job) {
	p.alloc.Job.Version, p.alloc.Job.SubmitTime = job.Version, job.SubmitTime
	p.alloc.DeploymentID = deployment.NewID(p.alloc.Job, p.group)
}

// keepSettings gives a new member the settings of another one.
func (p *part) keepSettings() error {
	if err := p.makeDir(); err != nil {
		return err
	}
	dir, err := makeAllocDir(p.target())
	if err != nil {
		return err
	}
	return p.like.Save(dir)
}
