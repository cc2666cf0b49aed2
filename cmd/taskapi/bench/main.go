// Command bench measures taskapi beside a bare net/http server, "the floor", which gives the same answer to the
// same request. It starts the binary that `make build` left, sends requests to its Unix sockets, and prints tables.
//
//	size        of the binary
//	throughput  authenticated GET /v1/allocation/ID with 1, 8 and 16 connections, beside the floor
//	start       time from exec to the first 200 that the operator gets, and that a task gets
//	memory      memory of an idle taskapi and its keeper
//	attack      what two good connections keep beside eight that flood the socket with bad tokens
//	neighbours  what a task with one slow client keeps beside two tasks with 64 busy connections each
//	exec        time to run /bin/true in a task, beside fork and exec
//	follow      what four readers get that follow the output of a task which prints 100 MB/s
//
// With -nomad, a Nomad agent is measured in turn with taskapi in throughput, start,
// memory and exec.
//
// With -compare, another revision (or another taskapi's file) is measured in turn with this one, in all of these. The
// program then exits 1 if a figure is worse by more than the spread of its ratios.
//
// The servers, the hostile clients and the tasks are processes of their own: this program, executed again in a
// role. So what is measured never shares a heap or a scheduler with what measures. Nothing leaves the machine: every
// connection is a Unix socket or loopback, in a temporary folder that is removed.
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
	"time"

	"taskapi/internal/slice"
)

// timeLimit bounds the whole program; with the default flags it ends within fifteen minutes.
const timeLimit = 30 * time.Minute

// usualRounds is how often each figure is measured: the least number at which chance calls one of twenty figures worse
// in fewer than one comparison of twenty.
const usualRounds = 9

type options struct {
	binary  string
	run     string
	compare string
	nomad   string
	seconds float64
	rounds  int
}

// of returns a time in proportion to -seconds.
func (o options) of(d time.Duration) time.Duration { return time.Duration(o.seconds * float64(d)) }

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
	"role-first": firstRole,
	"role-flood": floodRole,
	"role-print": printRole,
}

// A measurement is what -run may name: the ways that it takes. The first way is taskapi's.
type measurement struct {
	name string
	ways func(*environment) []way
}

var measurements = []measurement{
	{"size", func(e *environment) []way { return []way{{"taskapi", e.size}} }},
	{"throughput", func(e *environment) []way { return e.besideNomad(e.besideFloor(e.ours, answers), e.nomadAnswers) }},
	{"start", func(e *environment) []way {
		return e.besideNomad([]way{{"taskapi", e.starts}, {"floor", e.floorStarts}}, e.nomadStarts)
	}},
	{"memory", func(e *environment) []way {
		return e.besideNomad([]way{{"taskapi", e.memory}, {"floor", e.floorMemory}}, e.nomadMemory)
	}},
	{"attack", func(e *environment) []way { return e.besideFloor(e.attacked, e.attack) }},
	{"neighbours", func(e *environment) []way { return []way{{"taskapi", e.neighbours}} }},
	{"exec", func(e *environment) []way { return e.besideNomad(e.execWays(), e.nomadExecs) }},
	{"follow", func(e *environment) []way { return []way{{"taskapi", e.follow}} }},
}

func run(ctx context.Context, w io.Writer, args []string) error {
	if len(args) > 0 {
		if role, ok := roles[args[0]]; ok {
			return role(ctx, args[1:])
		}
	}
	var o options
	names := slice.Map(measurements, func(m measurement) string { return m.name })
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.binary, "binary", "bin/taskapi", "the taskapi to measure")
	flags.StringVar(&o.run, "run", strings.Join(names, ","), "what to measure")
	flags.StringVar(&o.compare, "compare", "", "a git revision, or a file, to measure in turn with the taskapi to measure")
	flags.StringVar(&o.nomad, "nomad", "", "Nomad's program, to measure beside taskapi what both have; root is needed")
	flags.Float64Var(&o.seconds, "seconds", 1, "how long a round of requests lasts")
	flags.IntVar(&o.rounds, "rounds", usualRounds, "how many rounds")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if o.seconds <= 0 || o.rounds < 1 || flags.NArg() > 0 {
		return errors.New("-seconds and -rounds must be above 0, and there are no arguments")
	}
	var chosen []measurement
	for name := range strings.SplitSeq(o.run, ",") {
		i := slices.IndexFunc(measurements, func(m measurement) bool { return m.name == name })
		if i < 0 {
			return fmt.Errorf("there is no measurement %q; -help lists them", name)
		}
		chosen = append(chosen, measurements[i])
	}
	env, err := newEnvironment(o.binary)
	if err != nil {
		return err
	}
	defer env.close()
	if o.nomad != "" {
		env.nomadBinary = env.path("nomad")
		if err := copyFile(env.nomadBinary, o.nomad); err != nil {
			return err
		}
	}
	if o.compare != "" {
		return compare(ctx, w, o, env, chosen)
	}
	for _, m := range chosen {
		if err := measure(ctx, w, o, m.name, m.ways(env), env); err != nil {
			return err
		}
	}
	return nil
}

// measure takes the ways in turn and prints their figures. Errors: errWorse in a comparison.
func measure(ctx context.Context, w io.Writer, o options, name string, ways []way, envs ...*environment) error {
	figures, err := inTurn(ctx, o, ways)
	for _, env := range envs {
		err = errors.Join(err, env.stop())
	}
	if err != nil {
		return fmt.Errorf("measurement %q: %w", name, err)
	}
	return printFigures(w, name, ways, figures, o.compare != "")
}

// compare measures another program in turn with the one of the environment.
func compare(ctx context.Context, w io.Writer, o options, env *environment, chosen []measurement) (err error) {
	file := o.compare
	if _, missing := os.Stat(file); missing != nil {
		if file, err = env.build(ctx, o.compare); err != nil {
			return err
		}
	}
	other, err := newEnvironment(file)
	if err != nil {
		return err
	}
	defer other.close()
	var worse error
	for _, m := range chosen {
		ways := []way{m.ways(env)[0], m.ways(other)[0]}
		ways[0].name, ways[1].name = "new", "old"
		if err := measure(ctx, w, o, m.name, ways, env, other); errors.Is(err, errWorse) {
			worse = err
		} else if err != nil {
			return err
		}
	}
	return worse
}
