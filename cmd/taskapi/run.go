package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// datacenter is where the one machine is: Nomad's default name.
const datacenter = "dc1"

// defaultIdentityTTL is how long an identity without a ttl of its own is good: a year, which outlives most allocations.
const defaultIdentityTTL = 365 * 24 * time.Hour

// runOptions are the flags of taskapi run.
type runOptions struct {
	jobFlags
	keyFlags
	jwks        []string
	audiences   []string
	issuer      string
	policy      string
	auditLog    string
	allocID     string
	hostIP      string
	identityTTL time.Duration
	json        bool
	verbose     bool
	gogc        bool // GOGC is set
}

func runCommand(w world) *cobra.Command {
	var opts runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] JOBFILE",
		Short: "Run an allocation in the foreground",
		Long: `Runs one allocation of the job file in the foreground and prints what happens to it, an event a line.

SIGINT and SIGTERM stop it in order (kill_signal, kill_timeout, shutdown_delay); a second one ends it at once.
Exit code: 0 when the allocation completes or is stopped, 1 when it fails, 2 when the job file or a flag is wrong.`,
		Args: oneArg("JOBFILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAllocation(cmd.Context(), opts, args[0], w)
		},
	}
	opts.jobFlags.add(cmd)
	opts.keyFlags.add(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&opts.jwks, "jwks", nil, "JWK set, a file or URL, of another issuer whose identities are trusted; may be repeated")
	f.StringArrayVar(&opts.audiences, "audience", nil, "audience that a token must name (default nomadproject.io); may be repeated")
	f.StringVar(&opts.issuer, "issuer", "", "issuer (iss) of new identities, a URL")
	f.StringVar(&opts.policy, "policy", "", "file that says what each task may do")
	f.StringVar(&opts.auditLog, "audit-log", "", "file that gets a JSON line for each refusal and each change")
	f.StringVar(&opts.allocID, "alloc-id", "", "ID of the allocation, a UUID (default a new one)")
	f.StringVar(&opts.hostIP, "host-ip", "127.0.0.1", "address on which the group's ports are taken")
	f.DurationVar(&opts.identityTTL, "identity-ttl", defaultIdentityTTL, "life of an identity that names no ttl")
	f.BoolVar(&opts.json, "json", false, "print events as JSON lines")
	f.BoolVarP(&opts.verbose, "verbose", "v", false, "log more than warnings to standard error")
	return cmd
}

// runAllocation is taskapi run.
func runAllocation(ctx context.Context, opts runOptions, jobFile string, w world) error {
	opts.gogc = w.getenv("GOGC") != ""
	l, err := newLayout(opts.dataDir, w)
	if err != nil {
		return err
	}
	id, err := allocationID(opts.allocID)
	if err != nil {
		return err
	}
	if _, err := netip.ParseAddr(opts.hostIP); err != nil {
		return usage(fmt.Errorf("--host-ip %q is no IP address: give one of this machine, such as 127.0.0.1 or ::1", opts.hostIP))
	}
	if opts.identityTTL <= 0 {
		return usage(fmt.Errorf("--identity-ttl is %v: give a positive duration, such as 24h", opts.identityTTL))
	}
	job, group, err := opts.load(jobFile, w)
	if err != nil {
		return err
	}
	alloc := newAllocation(id, job, group)
	p := newPrinter(w.stdout, alloc, opts.json)
	side, err := newSidecar(opts, l, alloc, p, newLogger(opts, w), w)
	if err != nil {
		return err
	}
	ctx, release := stopOnSignals(ctx, side, p)
	defer release()
	kind := "Starting"
	if side.resumed != nil {
		kind = "Resuming"
	}
	p.allocEvent(kind, fmt.Sprintf("allocation %s of job %q, group %q, in %s", id, alloc.JobID, alloc.TaskGroup, l.alloc(id)),
		"dir", l.alloc(id), "operator_socket", l.operatorSocket(id), "operator_token", l.operatorToken(id))
	err = side.run(ctx)
	return concluded(err, side, p)
}

// concluded says how the allocation ended, and gives the command's error.
func concluded(err error, side *sidecar, p *printer) error {
	status := side.runner.Alloc().ClientStatus
	if err == nil {
		p.allocEvent("Ended", "allocation is "+status, "status", status)
		return nil
	}
	p.allocEvent("Ended", oneLine(err.Error()), "status", status)
	return errSilent // the event has said why
}

// stopOnSignals ends ctx on the first SIGINT or SIGTERM and kills the allocation on the second. SIGHUP and SIGPIPE do nothing: a
// closed terminal, or a reader of the events that has gone away, is no reason to stop. They are caught rather than ignored, as
// tasks would inherit that.
func stopOnSignals(ctx context.Context, side *sidecar, p *printer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	unheard := make(chan os.Signal, 1) // nobody receives: what does not fit is dropped
	signal.Notify(unheard, syscall.SIGHUP, syscall.SIGPIPE)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		stops := 0
		for {
			select {
			case <-done:
				return
			case sig := <-signals:
				if stops++; stops == 1 {
					p.allocEvent("Stopping", fmt.Sprintf("%v: stopping in order; once more to end at once", sig), "signal", sig.String())
					cancel(fmt.Errorf("stopped by %v", sig))
					continue
				}
				p.allocEvent("Killing", fmt.Sprintf("%v again: ending at once", sig), "signal", sig.String())
				side.runner.Kill()
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		signal.Stop(unheard)
		close(done)
		<-ended
		cancel(nil)
	}
}

// uuidForm is what Nomad takes for an allocation's ID.
var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

func allocationID(given string) (string, error) {
	if given == "" {
		return uuid.NewString(), nil
	}
	id := strings.ToLower(given)
	if !uuidForm.MatchString(id) {
		return "", usage(fmt.Errorf("--alloc-id %q is no UUID: give one like %s, or none", given, uuid.NewString()))
	}
	return id, nil
}

// newAllocation is the allocation as a scheduler would have placed it on this machine.
func newAllocation(id string, job *api.Job, group *api.TaskGroup) *api.Allocation {
	node := thisNode()
	return &api.Allocation{
		ID:        id,
		EvalID:    uuid.NewString(),
		Name:      fmt.Sprintf("%s.%s[0]", *job.ID, *group.Name),
		Namespace: *job.Namespace,
		NodeID:    node.id,
		NodeName:  node.name,
		JobID:     *job.ID,
		Job:       job,
		TaskGroup: *group.Name,
	}
}

// newLogger logs to standard error: warnings, or each step.
func newLogger(opts runOptions, w world) *slog.Logger {
	level := slog.LevelWarn
	if opts.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w.stderr, &slog.HandlerOptions{Level: level}))
}
