// Command bench measures taskapi beside a bare net/http server, "the floor", which gives the same answer to the
// same request. It starts the binary that `make build` left, sends requests to its Unix sockets, and prints tables.
//
//	throughput  authenticated GET .../checks with 1, 8 and 16 connections, beside the floor
//	start       time from exec to the first 200 that the operator gets, and that a task gets
//	resume      the same for the operator after taskapi was killed, while its tasks run on
//	memory      memory of an idle taskapi and its keeper
//	attack      what two good connections keep beside eight that flood the socket with bad tokens
//	neighbours  what a task with one slow client keeps beside two tasks with 64 busy connections each
//	exec        time to run /bin/true in a task, beside fork and exec, and nsenter
//	follow      what four readers get that follow the output of a task which prints 100 MB/s
//
// With -compare, another revision (or another taskapi's file) is measured in turn with this one. The program then prints
// the ratios of the figures, new to old, with their spread, and exits 1 if a figure is worse by more than the spread.
//
// The servers, the hostile clients and the tasks are processes of their own: this program, executed again in a
// role. So what is measured never shares a heap or a scheduler with what measures. Servers take turns within a
// round, because a machine's speed drifts. Nothing leaves the machine: every connection is a Unix socket or
// loopback, in a temporary folder that is removed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// timeLimit bounds the whole program; with the default flags it ends within ten minutes.
const timeLimit = 30 * time.Minute

type options struct {
	binary  string
	run     string
	compare string
	seconds float64
	rounds  int
}

// names returns what -run names.
func (o options) names() []string { return strings.Split(o.run, ",") }

// of returns a time in proportion to -seconds.
func (o options) of(d time.Duration) time.Duration { return time.Duration(o.seconds * float64(d)) }

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// roles are what this program is when it is executed again.
var roles = map[string]func(context.Context, []string) error{
	"role-floor": floorRole,
	"role-task":  taskRole,
	"role-first": firstRole,
	"role-flood": floodRole,
	"role-print": printRole,
}

// A measurement is what -run may name. It prints a table, whose cells end with a tab.
type measurement struct {
	name    string
	measure func(ctx context.Context, env *environment, o options, table io.Writer) error
}

var measurements = []measurement{
	{"throughput", measureThroughput},
	{"start", measureStart},
	{"resume", measureResume},
	{"memory", measureMemory},
	{"attack", measureAttack},
	{"neighbours", measureNeighbours},
	{"exec", measureExec},
	{"follow", measureFollow},
}

func run(ctx context.Context, w io.Writer, args []string) error {
	if len(args) > 0 {
		if role, ok := roles[args[0]]; ok {
			return role(ctx, args[1:])
		}
	}
	var o options
	var all []string
	for _, m := range measurements {
		all = append(all, m.name)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.binary, "binary", "bin/taskapi", "the taskapi to measure")
	flags.StringVar(&o.run, "run", strings.Join(all, ","), "what to measure")
	flags.Float64Var(&o.seconds, "seconds", 1, "how long a round of requests lasts")
	flags.IntVar(&o.rounds, "rounds", 5, fmt.Sprintf("how many rounds; with -compare %d", compareRounds))
	flags.StringVar(&o.compare, "compare", "", "a git revision, or a file, to measure in turn with the taskapi to measure")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.seconds <= 0 || o.rounds < 1 || flags.NArg() > 0 {
		return errors.New("-seconds and -rounds must be above 0, and there are no arguments")
	}
	for _, name := range o.names() {
		if !slices.Contains(all, name) {
			return fmt.Errorf("there is no measurement %q; -help lists them", name)
		}
	}
	if o.compare != "" {
		rounds := compareRounds
		flags.Visit(func(f *flag.Flag) { // the flags that were given
			if f.Name == "rounds" {
				rounds = o.rounds
			}
		})
		o.rounds = rounds
		return compare(ctx, w, o)
	}
	env, err := newEnvironment(o.binary)
	if err != nil {
		return err
	}
	defer env.close()
	for _, name := range o.names() {
		i := slices.Index(all, name)
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		if err := measurements[i].measure(ctx, env, o, table); err != nil {
			return fmt.Errorf("measurement %q: %w", name, err)
		}
		fmt.Fprintln(table)
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}
