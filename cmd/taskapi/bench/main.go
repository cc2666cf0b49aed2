// Command bench measures taskapi beside a bare net/http server, "the floor": what the same machine does with the same request
// and nothing in the way. It starts the binary that `make build` left, drives it over its Unix sockets, and prints a table.
//
//	a  authenticated GET .../checks with 1, 8 and 16 connections, as a share of the floor
//	b  time from exec to the first 200 that a task gets, and that the operator gets
//	c  memory when idle, of taskapi and its keeper
//	d  what two good connections keep beside eight hostile ones
//
//	neighbours  what a task that asks one request after the other keeps beside two tasks with 64 busy connections each, all with good tokens
//
//	keeper   memory of the agent and of the keeper with 1, 3 and 50 tasks, and what each further task adds
//	tasks    the same with 10, 100 and 500 tasks in one group
//	restart  time from a restart's request to the new process, beside the time that the task takes to stop by itself
//	idle     processor time with 100 tasks that sleep, without checks and with one a second for each
//	exec     time to run /bin/true in a task over the operator's socket, beside fork and exec, and nsenter
//	resume   time from exec to the operator's first 200 when taskapi was killed and its tasks run on
//	shared   what allocations share: time to put, get and list, until waiters in another process know, and memory of entries
//	services time to register 1,000 services, and until another taskapi answers with them
//
// The servers, the hostile clients and the tasks are processes of their own (this program, executed again in a role), so that
// what is measured never shares a heap or a scheduler with what measures. Servers take turns within a round, because a
// machine's speed drifts. Nothing leaves the machine: every connection is a Unix socket or loopback, in a temporary folder that is removed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// timeLimit bounds the whole program; with the default flags it ends within ten minutes.
const timeLimit = 30 * time.Minute

type options struct {
	binary  string
	run     string
	json    bool
	seconds float64
	rounds  int
	most    int // tasks in one group
}

// of returns a time in proportion to -seconds.
func (o options) of(d time.Duration) time.Duration { return time.Duration(o.seconds * float64(d)) }

// rest leaves a server alone before it is looked at.
func (o options) rest(ctx context.Context) error { return wait(ctx, o.of(settle)) }

// upTo leaves out the groups that are too large.
func (o options) upTo(sizes []int) []int {
	return slices.DeleteFunc(slices.Clone(sizes), func(n int) bool { return n > o.most })
}

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
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		if role, ok := roles[args[0]]; ok {
			return role(ctx, args[1:])
		}
	}
	var o options
	var all []string
	for _, m := range new(report).measurements() {
		all = append(all, m.name)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.binary, "binary", "bin/taskapi", "the taskapi to measure")
	flags.StringVar(&o.run, "run", strings.Join(all, ","), "what to measure")
	flags.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flags.Float64Var(&o.seconds, "seconds", 1, "how long each round of a and d lasts; that of idle, and the rest before memory is read, are in proportion")
	flags.IntVar(&o.rounds, "rounds", 5, "how many rounds")
	flags.IntVar(&o.most, "most", 500, "leave out groups of more tasks than that")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.seconds <= 0 || o.rounds < 1 || o.most < 1 || flags.NArg() > 0 {
		return errors.New("-seconds, -rounds and -most must be above 0, and there are no arguments")
	}
	report, err := measure(ctx, o)
	if err != nil {
		return err
	}
	if o.json {
		return json.NewEncoder(os.Stdout).Encode(report)
	}
	return report.print(os.Stdout)
}

// roles are what this program is when it is executed again.
var roles = map[string]func(context.Context, []string) error{
	"role-floor":  floorRole,
	"role-task":   taskRole,
	"role-first":  firstRole,
	"role-flood":  floodRole,
	"role-begin":  beginRole,
	"role-print":  printRole,
	"role-shared": sharedRole,
}

// A measurement is what -run may name.
type measurement struct {
	name    string
	measure func(ctx context.Context, env *environment, o options) error
}

// measurements are all, in the order of the table. Each fills its part of the report.
func (r *report) measurements() []measurement {
	return []measurement{
		{"throughput", into(&r.Throughput, measureThroughput)},
		{"start", into(&r.Start, measureStart)},
		{"memory", into(&r.Memory, measureMemory)},
		{"attack", into(&r.Attack, measureAttack)},
		{"neighbours", into(&r.Neighbours, measureNeighbours)},
		{"keeper", into(&r.Keeper, sizes(fewTasks).measure)},
		{"tasks", into(&r.Tasks, sizes(manyTasks).measure)},
		{"restart", into(&r.Restart, measureRestart)},
		{"idle", into(&r.Idle, measureIdle)},
		{"stats", into(&r.Stats, measureStats)},
		{"waits", into(&r.Waits, measureWaits)},
		{"resume", into(&r.Resume, measureResume)},
		{"exec", into(&r.Exec, measureExec)},
		{"follow", into(&r.Follow, measureFollow)},
		{"shared", into(&r.Shared, measureShared)},
		{"services", into(&r.Services, measureServices)},
	}
}

func into[T any](part *T, measure func(context.Context, *environment, options) (T, error)) func(context.Context, *environment, options) error {
	return func(ctx context.Context, env *environment, o options) (err error) {
		*part, err = measure(ctx, env, o)
		return err
	}
}

func measure(ctx context.Context, o options) (*report, error) {
	env, err := newEnvironment(o.binary)
	if err != nil {
		return nil, err
	}
	defer env.close()
	report := &report{}
	all := report.measurements()
	for name := range strings.SplitSeq(o.run, ",") {
		i := slices.IndexFunc(all, func(m measurement) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no measurement %q; -help lists them", name)
		}
		if err := all[i].measure(ctx, env, o); err != nil {
			return nil, fmt.Errorf("measurement %q: %w", name, err)
		}
	}
	return report, nil
}
