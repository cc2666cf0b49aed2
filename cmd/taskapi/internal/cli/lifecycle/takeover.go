package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/identity"
)

func Takeover(w base.Environment) *cobra.Command {
	opts := runOptions{takeOver: true}
	var all bool
	var at base.TargetFlags
	cmd := &cobra.Command{
		Use:        "takeover [flags] [ALLOC]",
		SuggestFor: []string{"resume", "continue", "upgrade"},
		Short:      "Upgrade the taskapi that runs an allocation, while its tasks run on",
		Long: `Replaces the taskapi that runs an allocation by this one, without a task noticing.

This taskapi goes on in the background. No job file is needed: the job stays as it is, with its variables. The
settings of the last run hold, unless you give others. If this taskapi can't resume the allocation, it says why, and
the other one goes on. If the allocation's taskapi has exited, this one resumes the allocation.

` + base.AllocArgs,
		Example: `  taskapi takeover
  taskapi takeover --all
  taskapi takeover --policy nomad hello`,
		Args: func(cmd *cobra.Command, args []string) error {
			if all && at.Given(args) {
				return base.Usagef("--all takes over every allocation: leave out ALLOC, or --all")
			}
			return base.CheckArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if at.DataDir = opts.DataDir; opts.Detached {
				return opts.takeOverHere(cmd, args, w)
			}
			if all {
				return takeOverAll(cmd, opts.DataDir, w)
			}
			found, err := at.Find(cmd.Context(), args)
			if err != nil {
				return err
			}
			return takeOver(cmd, found, w)
		},
	}
	opts.Add(cmd)
	at.AddNames(cmd, w, base.ToChange)
	cmd.ValidArgsFunction = base.CompleteTarget(&opts.DataDir, w, base.ToChange)
	cmd.Flags().BoolVar(&all, "all", false, "take over every allocation that a taskapi runs")
	return cmd
}

// takeOverAll takes over every allocation that a taskapi runs, and goes on after an error.
func takeOverAll(cmd *cobra.Command, dataDir string, w base.Environment) error {
	f, err := base.Look(cmd.Context(), w, dataDir)
	if err != nil {
		return err
	}
	some, failed := false, false
	for _, k := range f.Known {
		c := k.Layout.Client(k.ID)
		holder := c.Locate(cmd.Context(), client.Brief).Holder
		c.Close()
		if holder == client.Nobody || holder == client.Ended || holder == client.Unreadable {
			continue
		}
		some = true
		if err := takeOver(cmd, k.Target, w); err != nil {
			failed = true
			if !base.IsSilent(err) {
				w.Warnf("%v", err)
			}
		}
	}
	switch {
	case failed:
		return base.ErrSilent
	case !some:
		fmt.Fprintf(w.Stderr, "no taskapi runs an allocation in %s\n", f.Dirs())
	}
	return nil
}

// takeOver takes the allocation over with a process in the background.
func takeOver(cmd *cobra.Command, t base.Target, w base.Environment) error {
	args := append([]string{"takeover"}, givenFlags(cmd, "all", "alloc", "data-dir")...)
	args = append(args, "--data-dir="+string(t.Layout.Dir), t.ID)
	goesOn := func(alloc *api.Allocation) (bool, error) { return !interfaces.Ended(alloc), nil }
	if err := background(cmd.Context(), t, w, args, nil, goesOn); err != nil {
		return err
	}
	return w.Printf("%s is run by taskapi %s\n", t, w.Version)
}

// takeOverHere takes the allocation over with this process, and runs it to its end.
func (o *runOptions) takeOverHere(cmd *cobra.Command, args []string, w base.Environment) error {
	return o.inProcess(cmd, w, func(waiting context.Context, r *request) error {
		found, err := base.Find(waiting, r.environment, o.DataDir, args, base.ToChange)
		if err != nil {
			return err
		}
		r.layout = found.Layout
		if err := r.readSettings(found.ID, cmd.Flags()); err != nil {
			return err
		}
		saved, err := savedOf(found)
		if err != nil {
			return err
		}
		if err := r.options.CheckUsers(saved.Alloc.GetTaskGroup()); err != nil {
			return base.Usage(err)
		}
		r.alloc = saved.Alloc
		return r.run(cmd.Context(), waiting)
	})
}

// savedOf returns an allocation's saved state. It is an error if the allocation is starting, or if its state was
// removed.
func savedOf(t base.Target) (*interfaces.Saved, error) {
	saved, err := t.Layout.Peek(t.ID)
	if err == nil && saved == nil {
		return nil, fmt.Errorf("allocation %s has no saved state: no other taskapi could resume its tasks", t.ID)
	}
	return saved, t.Layout.Explain(err)
}

// takeOver makes the taskapi that runs the allocation exit and leave its tasks running. It first checks everything that
// could make this process fail afterwards, since the tasks would then have no taskapi.
func (r *request) takeOver(ctx context.Context) error {
	if _, err := r.options.tryFiles(r.layout); err != nil {
		return err
	}
	if err := r.errOtherUsers(); err != nil {
		return err
	}
	c := r.target().Client()
	defer c.Close()
	found := c.Locate(ctx, client.Timeouts{})
	switch found.Holder {
	// a taskapi that hangs would act on the signal when this process has given up
	case client.Hanging, client.Ended, client.Unreadable:
		return r.target().ErrUnserved(found)
	case client.Nobody, client.Changing: // the next look decides
		return nil
	}
	saved, err := savedOf(r.target())
	if err != nil {
		return err
	}
	runner, err := allocrunner.New(interfaces.Config{Alloc: saved.Alloc, Dir: r.layout.Alloc(saved.Alloc.ID),
		Logger: slog.New(slog.DiscardHandler), Saved: saved})
	if err != nil {
		return fmt.Errorf("allocation %s: %w", saved.Alloc.ID, err)
	}
	if err := base.Usage(runner.Validate(saved.Alloc.Job)); err != nil {
		return err
	}
	if err := r.errNoTokens(saved.Alloc); err != nil {
		return err
	}
	if _, err := c.Signal(ctx, syscall.SIGUSR1); err != nil && !errors.Is(err, client.ErrNoAnswer) {
		return fmt.Errorf("the taskapi of allocation %s: %w", r.alloc.ID, err)
	}
	return nil
}

// tryFiles reads every file that an agent needs at its start. It returns the key ring.
func (o *runOptions) tryFiles(l base.Layout) (*identity.Keyring, error) {
	ring, err := l.OpenKeyring(o.SealKey)
	if err != nil {
		return nil, err
	}
	return ring, o.TryFiles()
}

// errNoTokens returns an error for settings with which no token of a task can be issued. It changes the allocation's
// job.
func (r *request) errNoTokens(alloc *api.Allocation) error {
	_, findings, err := r.options.Review(alloc.Job, alloc.TaskGroup)
	if err != nil {
		return err
	}
	for _, f := range findings {
		if f.Severity == review.Refused && f.Feature == review.IdentityFeature {
			return base.Usagef("%s; allocation %s runs on", f.Line(""), alloc.ID)
		}
	}
	return nil
}
