package shared

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/vars"
)

type lockCommandLine struct {
	varFlags
	ttl, delay  time.Duration
	backoff     time.Duration
	maxRetry    int
	earlyReturn bool
	shell       bool
	verbose     bool
}

func varLock(w base.Environment) *cobra.Command {
	var line lockCommandLine
	cmd := &cobra.Command{
		Use:   "lock [flags] PATH [@SPEC] COMMAND [ARG]...",
		Short: "Run a command while holding the lock of a variable",
		Long: `Acquires the lock of a variable, runs COMMAND, and releases the lock.

A missing variable is made. If somebody else holds the lock, the command waits, or fails with --early-return. The lock
is renewed while COMMAND runs. If it is lost all the same, COMMAND is killed.

SIGINT and SIGTERM go to COMMAND. If 'taskapi var lock' is killed, COMMAND is killed, too, and others can have the
lock after twice its TTL and its delay.

COMMAND is run by $SHELL, or /bin/sh, which joins the arguments by blanks. Only the shell is killed, not its children:
let 'exec' begin the shell's last command, or give --shell=false, which runs COMMAND directly.

Exit code: COMMAND's, 128 and the number of the signal that ended it, 127 when there is no such command, 126 when it
can't be executed, 125 when taskapi itself failed: a flag is wrong, or the lock was not acquired, or was lost.`,
		Example: `  taskapi var lock nightly/backup ./backup.sh
  taskapi var lock -shell=false -early-return nightly/backup /usr/local/bin/backup -full`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return base.Usagef("PATH or COMMAND is missing: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return line.run(cmd.Context(), args, w) },
	}
	line.add(cmd)
	f := cmd.Flags()
	f.BoolVar(&line.earlyReturn, "early-return", false, "fail instead of waiting if somebody else holds the lock")
	f.BoolVar(&line.shell, "shell", true, "run COMMAND by a shell")
	f.BoolVarP(&line.verbose, "verbose", "v", false, "report each step on standard error")
	f.DurationVar(&line.ttl, "ttl", api.DefaultLockTTL,
		"time within which the lock must be renewed, from 10s to 24h")
	f.DurationVar(&line.delay, "delay", api.DefaultLockDelay,
		"time after the loss of a lock in which nobody can acquire it")
	f.DurationVar(&line.backoff, "backoff", 0,
		"time between attempts to acquire a lock that is not released (default 1.1 TTLs)")
	f.IntVar(&line.maxRetry, "max-retry", 5,
		"`N` attempts to renew the lock while the data directory can't be written, within the TTL")
	return base.OutlivesReaders(base.SetRunsAnother(cmd))
}

func (l *lockCommandLine) run(ctx context.Context, args []string, w base.Environment) error {
	path, err := vars.CheckedPath(args[0])
	if err != nil {
		return err
	}
	args = args[1:]
	v := &api.Variable{Namespace: l.in(w), Path: path,
		Lock: &api.VariableLock{TTL: l.ttl.String(), LockDelay: l.delay.String()}}
	if strings.HasPrefix(args[0], "@") {
		spec, err := vars.ReadSpec(args[0][1:], w.Stdin)
		if err != nil {
			return base.Usage(err)
		}
		if v.Items, args = spec.Items, args[1:]; len(args) == 0 {
			return base.Usagef("COMMAND is missing after SPEC")
		}
	}
	if l.maxRetry < 0 || l.backoff < 0 {
		return base.Usagef("--max-retry and --backoff must not be negative")
	}
	if l.backoff == 0 {
		l.backoff = l.ttl + l.ttl/10
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	return l.change(w, false, "var lock", v.Path, func(kept *variables.Service) error {
		h := lockHolder{l, kept, v, w, signals}
		return h.run(ctx, args)
	})
}

func (l *lockCommandLine) say(w base.Environment, format string, args ...any) {
	if l.verbose {
		w.Warnf(format, args...)
	}
}

// lockHolder acquires a lock, and holds it while a command runs.
type lockHolder struct {
	*lockCommandLine
	kept     *variables.Service
	variable *api.Variable
	w        base.Environment
	signals  chan os.Signal
}

var errLockLost = errors.New("the lock was lost, and the command was killed: it was not renewed in time")

func (h *lockHolder) run(ctx context.Context, args []string) error {
	held, err := h.acquire(ctx)
	if err != nil {
		return err
	}
	h.say(h.w, "Variable locked, ready to execute: %s", strings.Join(args, " "))
	failed := h.hold(ctx, held.Lock.ID, args)
	h.say(h.w, "Releasing the lock")
	_, _, err = h.kept.Release(context.WithoutCancel(ctx), held.Namespace, held.Path, held.Lock.ID)
	if errors.Is(failed, errLockLost) {
		err = nil // it was printed already
	}
	if err != nil && failed == nil {
		return fmt.Errorf("release the lock: %w", err)
	}
	return failed
}

// acquire waits until it has acquired the lock. A release ends the wait at once, and so does a signal.
func (h *lockHolder) acquire(ctx context.Context) (*api.Variable, error) {
	isIt := func(_, path string) bool { return path == h.variable.Path }
	for {
		// what changes from now on has a higher one
		_, index, err := h.kept.List(ctx, h.variable.Namespace, h.variable.Path, isIt)
		if err != nil {
			return nil, err
		}
		h.say(h.w, "Attempting to acquire lock")
		held, _, err := h.kept.Acquire(ctx, h.variable)
		if conflict, ok := errors.AsType[*variables.ConflictError](err); !ok || !conflict.Locked || h.earlyReturn {
			return held, err
		}
		wait, stop := context.WithTimeout(ctx, h.backoff)
		changed := make(chan struct{})
		go func() {
			defer close(changed)
			if h.kept.Await(wait, h.variable.Namespace, h.variable.Path, index, isIt) != nil {
				<-wait.Done() // an error of the store is no reason to try again at once
			}
		}()
		select {
		case <-changed:
		case s := <-h.signals:
			stop()
			<-changed
			return nil, base.ExitError{Code: base.ExitSignalled + int(s.(syscall.Signal))}
		}
		stop()
	}
}

func (h *lockHolder) command(args []string) *exec.Cmd {
	if h.shell {
		args = []string{cmp.Or(h.w.Getenv("SHELL"), "/bin/sh"), "-c", strings.Join(args, " ")}
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = h.w.Stdin, h.w.Stdout, h.w.Stderr, h.w.Env
	return cmd
}

// hold runs the command and renews the lock until it has ended. Errors: errLockLost, base.ExitError with its exit code.
func (h *lockHolder) hold(ctx context.Context, id string, args []string) error {
	cmd := h.command(args)
	ended, err := base.StartChild(cmd)
	if err != nil {
		return base.CommandError(args[0], err)
	}
	renewed, renewals := time.Now(), time.NewTicker(h.ttl/3)
	defer renewals.Stop()
	failures := 0
	for {
		select {
		case err := <-ended:
			return base.ChildExit(err)
		case s := <-h.signals:
			_ = cmd.Process.Signal(s) // one that has ended is noticed above
		case <-renewals.C:
			_, _, err := h.kept.Renew(ctx, h.variable.Namespace, h.variable.Path, id)
			if err == nil {
				renewed, failures = time.Now(), 0
				continue
			}
			failures++
			gone := errors.Is(err, variables.ErrLocked) || errors.Is(err, variables.ErrNotLocked) ||
				errors.Is(err, variables.ErrNotFound)
			if !gone && failures <= h.maxRetry && time.Since(renewed) < h.ttl {
				h.say(h.w, "the lock could not be renewed: %v", err)
				continue
			}
			_ = cmd.Process.Kill() // one that has ended is waited for below
			h.say(h.w, "The command has ended: %v", <-ended)
			return fmt.Errorf("%w: %w", errLockLost, err)
		}
	}
}
