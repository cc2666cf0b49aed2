package lifecycle

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/ptr"
	"taskapi/internal/slice"
)

// rollout is update --all: it makes the running allocations of a job those that another version of the job asks for.
type rollout struct {
	updater
	cmd     *cobra.Command
	loaded  *start.LoadedJob
	jobFile string
	text    []byte // of a job file on standard input, for the processes of new allocations

	layout  base.Layout
	updates []*update     // in the order of the job
	missing []*part       // to be started
	surplus []base.Target // to be stopped
}

// update is a running allocation that the new version asks for, too.
type update struct {
	base.Target
	group   *api.TaskGroup // of the new version
	label   string
	changes *jobChanges
	err     error
}

func (u *update) destructive() bool { return u.changes.Replaces || len(u.changes.Restarts) > 0 }

// newRollout reads the new version.
func newRollout(u updater, cmd *cobra.Command, flags *start.JobFlags, jobFile string) (*rollout, error) {
	r := &rollout{updater: u, cmd: cmd, jobFile: jobFile}
	var err error
	if jobFile == "-" {
		if r.text, err = io.ReadAll(u.environment.Stdin); err != nil {
			return nil, fmt.Errorf("job file on standard input: %w", err)
		}
		r.environment.Stdin = bytes.NewReader(r.text)
	}
	if r.loaded, err = flags.Read(jobFile, r.environment); err != nil {
		return nil, err
	}
	r.fromFiles = r.loaded.FromFiles
	return r, nil
}

func (r *rollout) run(dataDir string) error {
	ctx, release := signal.NotifyContext(r.cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer release()
	running, err := allocationsOf(ctx, r.environment, dataDir, r.loaded.Job)
	if err != nil {
		return err
	}
	r.layout = running[0].Layout
	lock, err := lockJob(ctx, r.layout, r.loaded.Job)
	if err != nil {
		return err
	}
	defer lock.Close()
	if running, err = allocationsOf(ctx, r.environment, dataDir, r.loaded.Job); err != nil {
		return err
	}
	if slices.ContainsFunc(running, func(t base.Target) bool { return t.Layout.Dir != r.layout.Dir }) {
		return base.Usagef("job %q runs in several data directories: give one with --data-dir", *r.loaded.Job.ID)
	}
	log := base.QueuedLog(r.environment)
	defer base.FlushAll(log)
	r.environment.Stderr = log
	if err := r.plan(ctx, running, log); err != nil {
		return err
	}
	if done, err := r.print(); done || err != nil {
		return err
	}
	return r.apply(ctx)
}

// plan compares the running allocations with the new version, and changes nothing.
func (r *rollout) plan(ctx context.Context, running []base.Target, log *linewriter.Writer) error {
	kept, err := r.layout.Record(running[0].ID)
	if err != nil {
		return err
	}
	s, err := kept.Settings()
	if err != nil {
		return err
	}
	groups, err := r.loaded.ChooseAll(r.jobFile, s, r.environment)
	if err != nil {
		return err
	}
	members, err := membersOf(r.loaded.Job, groups)
	if err != nil {
		return base.Usagef("%s: %w", start.FileName(r.jobFile), err)
	}
	var allocs []*api.Allocation
	for _, m := range members {
		none := true
		for _, t := range running {
			if t.Alloc.Name != m.allocName {
				continue
			}
			ended, err := awaitExit(ctx, t)
			if err != nil {
				return err
			}
			if ended {
				continue
			}
			none = false
			u, err := r.compare(ctx, t, m)
			if err != nil {
				return err
			}
			r.updates, allocs = append(r.updates, u), append(allocs, t.Alloc)
		}
		if none && !r.hasRun(m) {
			p, err := r.newPart(m, s, log)
			if err != nil {
				return err
			}
			r.missing, allocs = append(r.missing, p), append(allocs, p.alloc)
		}
	}
	for _, t := range running {
		if !slices.ContainsFunc(members, func(m member) bool { return m.allocName == t.Alloc.Name }) {
			r.surplus, allocs = append(r.surplus, t), append(allocs, t.Alloc)
		}
	}
	r.labels = follow.NewLabels(allocs, r.environment)
	r.number(running)
	for _, p := range r.missing {
		p.numberedAs(r.loaded.Job)
		p.like = &kept
		if !slices.ContainsFunc(running, func(t base.Target) bool { return t.Alloc.TaskGroup == *p.group.Name }) {
			if err := p.errPorts(); err != nil {
				return err
			}
		}
	}
	return nil
}

// number gives the new version the number and the time that it has in an allocation which runs it already or, if none
// does, the next number of all.
func (r *rollout) number(running []base.Target) {
	next := &api.Job{Version: new(uint64), SubmitTime: new(time.Now().UnixNano())}
	for _, t := range running {
		*next.Version = max(*next.Version, ptr.Deref(t.Alloc.Job.Version)+1)
	}
	for _, u := range r.updates {
		if len(u.changes.Changes) == 0 {
			next = u.Alloc.Job
		}
	}
	r.loaded.Job.Version, r.loaded.Job.SubmitTime = next.Version, next.SubmitTime
}

// compare asks the taskapi of a running allocation what the new version changes.
func (r *rollout) compare(ctx context.Context, t base.Target, m member) (*update, error) {
	c := t.Client()
	defer c.Close()
	found := c.Locate(ctx, client.Patient)
	if found.Holder == client.Nobody {
		return nil, fmt.Errorf("no taskapi runs %s, and nothing was changed: '%s' resumes it", t.Alloc.Name,
			t.Layout.Command("takeover", output.ShortID(t.ID)))
	}
	if found.Holder != client.Serving {
		return nil, t.ErrUnserved(found)
	}
	one := r.updater
	one.Target = t
	plan, err := c.Plan(ctx, r.loaded.Job)
	if err != nil {
		return nil, one.asError(err)
	}
	return &update{Target: t, group: m.group, label: m.label(),
		changes: one.changesOf(plan, found.Alloc, r.loaded.Job)}, nil
}

// hasRun reports whether the member of a batch job has done its work with this version of the job already.
func (r *rollout) hasRun(m member) bool {
	if !strings.HasSuffix(ptr.Deref(r.loaded.Job.Type), "batch") {
		return false
	}
	ids, _ := r.layout.Ended() // those that can be read
	return slices.ContainsFunc(ids, func(id string) bool {
		saved, err := r.layout.Peek(id)
		return err == nil && saved != nil && saved.Alloc.Name == m.allocName &&
			saved.Alloc.Namespace == *r.loaded.Job.Namespace &&
			saved.Alloc.DesiredStatus != api.AllocDesiredStatusStop &&
			len(jobdiff.Changes(saved.Alloc.Job, r.loaded.Job, *m.group.Name)) == 0
	})
}

// newPart returns the run of a member that is missing. It gets the flags of the job file's variables.
func (r *rollout) newPart(m member, s agent.Settings, log *linewriter.Writer) (*part, error) {
	all := []string{"--data-dir=" + string(r.layout.Dir)}
	for _, flag := range []string{"var", "var-file"} {
		for _, value := range r.cmd.Flags().Lookup(flag).Value.(pflag.SliceValue).GetSlice() {
			all = append(all, "--"+flag+"="+value)
		}
	}
	req := &request{jobFile: r.jobFile, loaded: r.loaded, flags: all, text: r.text, environment: r.environment, log: log}
	req.options.DataDir, req.options.Settings = string(r.layout.Dir), s
	return req.partOf(m, r.cmd.Flags())
}

// print prints what is to be changed. done says that nothing is, or is to be.
func (r *rollout) print() (done bool, err error) {
	w := r.environment
	if r.json {
		if err := output.JSON(w.Stdout, r.asJSON()); err != nil {
			return true, err
		}
		r.environment.Stdout = io.Discard
		w = r.environment
	}
	nothing := len(r.missing)+len(r.surplus) == 0
	var text strings.Builder
	labels := map[string][]string{} // of the allocations with the same changes
	var order []string
	for _, u := range r.updates {
		if len(u.changes.Changes) == 0 {
			continue
		}
		nothing = false
		table := u.changes.table()
		if r.dryRun {
			table += u.changes.needs()
		}
		if labels[table] == nil {
			order = append(order, table)
		}
		labels[table] = append(labels[table], u.label)
	}
	for _, table := range order {
		fmt.Fprintf(&text, "%s:\n", strings.Join(labels[table], ", "))
		for line := range strings.Lines(table) {
			text.WriteString("  " + line)
		}
	}
	for _, t := range r.surplus {
		fmt.Fprintf(&text, "stop %s (allocation %s)\n", r.labels.Of(t.Alloc), t.ID)
	}
	for _, p := range r.missing {
		fmt.Fprintf(&text, "start %s\n", p.label())
	}
	if err := w.Printf("%s", text.String()); err != nil {
		return true, err
	}
	switch {
	case nothing:
		return true, w.Printf("the allocations of job %q run this version: nothing to change%s\n", *r.loaded.Job.ID,
			r.forNextStart(r.layout))
	case r.dryRun:
		return true, w.Printf("nothing was changed\n")
	}
	return false, r.errUnfit()
}

// rolloutJSON is what update --all --json prints.
type rolloutJSON struct {
	Allocs []*jobChanges `json:"allocs"`
	Stops  []string      `json:"stops"`  // IDs
	Starts []string      `json:"starts"` // names
}

func (r *rollout) asJSON() rolloutJSON {
	return rolloutJSON{
		append([]*jobChanges{}, slice.Map(r.updates, func(u *update) *jobChanges { return u.changes })...),
		append([]string{}, slice.Map(r.surplus, func(t base.Target) string { return t.ID })...),
		append([]string{}, slice.Map(r.missing, func(p *part) string { return p.allocName })...),
	}
}

// errUnfit refuses changes that no flag allows, and canaries.
func (r *rollout) errUnfit() error {
	var need []string
	for _, u := range r.updates {
		if !u.destructive() {
			continue
		}
		need = append(need, u.label)
		if u.group.Update != nil && ptr.Deref(u.group.Update.Canary) > 0 {
			return base.Usagef("group %q: update: there are no canaries, and nothing was changed: leave out canary, or give "+
				"it 0", *u.group.Name)
		}
	}
	if len(need) > 0 && !r.restart && !r.replace {
		return base.Usagef("%s %s new processes for this job, and nothing was changed: --restart restarts no more than the "+
			"changes need, --replace stops each allocation gracefully and runs it again", strings.Join(need, ", "),
			base.Plural(len(need), "needs", "need"))
	}
	return nil
}

// apply makes the changes: stops, changes in place, starts, and then new processes.
func (r *rollout) apply(ctx context.Context) error {
	if len(r.surplus) > 0 {
		s := stopping{environment: r.environment, labels: r.labels}
		if err := s.runAll(context.WithoutCancel(ctx), r.surplus, false); err != nil {
			return err
		}
	}
	var before []*update // their processes have the earlier version
	for _, u := range r.updates {
		switch {
		case u.destructive():
			before = append(before, u)
		case len(u.changes.Changes) > 0 && ctx.Err() == nil:
			if err := r.one(ctx, u); err != nil {
				return fmt.Errorf("%s: %w", u.label, err)
			}
		}
	}
	if err := r.startMissing(ctx); err != nil {
		return err
	}
	for len(before) > 0 {
		group := before[0].group
		n := slices.IndexFunc(before, func(u *update) bool { return u.group != group })
		if n < 0 {
			n = len(before)
		}
		left, err := r.roll(ctx, group, before[:n])
		before = append(left, before[n:]...)
		if err != nil {
			return r.errStopped(ctx, err, before)
		}
	}
	if ctx.Err() != nil {
		return r.errStopped(ctx, context.Cause(ctx), before)
	}
	return r.environment.Printf("the allocations of job %q run the new version\n", *r.loaded.Job.ID)
}

// errStopped says which allocations still have the version before.
func (r *rollout) errStopped(ctx context.Context, err error, before []*update) error {
	if ctx.Err() != nil {
		err = errors.New("this command goes on no longer")
	}
	if len(before) == 0 {
		return err
	}
	labels := slice.Map(before, func(u *update) string { return u.label })
	return fmt.Errorf("%w\nthe update has stopped: %s still %s the version before; '%s' with the earlier job file takes "+
		"it back, with this one goes on", err, strings.Join(labels, ", "), base.Plural(len(labels), "runs", "run"),
		r.layout.Command("update", "--all"))
}

// startMissing starts the members that are missing, and waits until they are healthy.
func (r *rollout) startMissing(ctx context.Context) error {
	startAll(ctx, r.missing, r.cmd.Flags())
	each(r.missing, func(p *part) {
		if p.err = p.settled(ctx, p.err); p.err == nil {
			p.err = r.awaitHealthy(ctx, p.target(), p.group)
		}
		if p.err == nil {
			p.err = r.environment.Printf("%s runs, as allocation %s\n", p.label(), p.alloc.ID)
		}
	})
	return report(r.missing)
}

// roll gives the allocations of a group new processes, max_parallel of them at a time, and returns those that have not
// got them. Errors: one is unhealthy.
func (r *rollout) roll(ctx context.Context, group *api.TaskGroup, left []*update) ([]*update, error) {
	atOnce := len(left)
	if group.Update != nil && ptr.Deref(group.Update.MaxParallel) > 0 {
		atOnce = *group.Update.MaxParallel
	}
	for _, u := range r.updates { // an earlier update may have come to them
		if u.group == group && !u.destructive() {
			if err := r.awaitHealthy(ctx, u.Target, group); err != nil {
				return left, fmt.Errorf("%s has this version already: %w", u.label, err)
			}
		}
	}
	for len(left) > 0 && ctx.Err() == nil {
		now := left[:min(atOnce, len(left))]
		left = left[len(now):]
		each(now, func(u *update) {
			if u.err = r.one(ctx, u); u.err == nil {
				u.err = r.awaitHealthy(ctx, u.Target, group)
			}
		})
		var errs []error
		for _, u := range now {
			if u.err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", u.label, u.err))
			}
		}
		if len(errs) > 0 {
			return left, errors.Join(errs...)
		}
	}
	return left, nil
}

// one makes the changes of one allocation.
func (r *rollout) one(ctx context.Context, u *update) error {
	c := u.Client()
	defer c.Close()
	one := r.updater
	one.Target, one.labels = u.Target, r.labels
	one.environment.Stdout = &labelled{u.label, r.labels}
	if r.json {
		one.environment.Stdout = io.Discard
	}
	before, _, err := c.Allocation(ctx) // another update may have come to it meanwhile
	if err != nil {
		return one.asError(err)
	}
	plan, err := c.Plan(ctx, r.loaded.Job)
	if err != nil {
		return one.asError(err)
	}
	changes := one.changesOf(plan, before, r.loaded.Job)
	if len(changes.Changes) == 0 {
		return one.environment.Printf("allocation %s runs the new version already\n", u.ID)
	}
	return one.apply(ctx, c, before, r.loaded.Job, plan, changes)
}

// awaitHealthy waits until an allocation is healthy with its present version, if anything decides that. With
// health_check "manual", the operator does.
func (r *rollout) awaitHealthy(ctx context.Context, t base.Target, group *api.TaskGroup) error {
	policy := group.Update
	if ptr.Deref(r.loaded.Job.Type) != api.JobTypeService || policy == nil || ptr.Deref(policy.MaxParallel) == 0 {
		return nil
	}
	wait := start.WaitOptions{What: start.WaitHealthy, Timeout: cmp.Or(ptr.Deref(policy.ProgressDeadline), -1)}
	return wait.Await(ctx, &follow.Follower{Target: t, Quiet: true}, r.environment.Stderr)
}
