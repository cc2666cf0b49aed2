// Command bench measures taskapi beside a bare net/http server, "the floor": what the same machine does with the same request
// and nothing in the way. It starts the binary that `make build` left, drives it over its Unix sockets, and prints a table.
//
//	a  authenticated GET .../checks with 1, 8 and 16 connections, as a share of the floor
//	b  time from exec to the first 200 that a task gets, and that the operator gets
//	c  memory when idle, of taskapi and its keeper
//	d  what two good connections keep beside eight hostile ones
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
	"strings"
	"syscall"
	"time"
)

// patience bounds the whole program; with the default flags it ends within a minute or two.
const patience = 15 * time.Minute

type options struct {
	binary  string
	run     string
	json    bool
	seconds float64
	rounds  int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
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
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.binary, "binary", "bin/taskapi", "the taskapi to measure")
	flags.StringVar(&o.run, "run", "a,b,c,d", "what to measure: a throughput, b start, c memory, d under attack")
	flags.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flags.Float64Var(&o.seconds, "seconds", 1, "how long each round of a and d lasts")
	flags.IntVar(&o.rounds, "rounds", 5, "how many rounds")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.seconds <= 0 || o.rounds < 1 || flags.NArg() > 0 {
		return errors.New("-seconds and -rounds must be above 0, and there are no arguments")
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
	"role-floor": floorRole,
	"role-task":  taskRole,
	"role-first": firstRole,
	"role-flood": floodRole,
}

func measure(ctx context.Context, o options) (*report, error) {
	lab, err := newLab(o.binary)
	if err != nil {
		return nil, err
	}
	defer lab.close()
	report := &report{}
	for name := range strings.SplitSeq(o.run, ",") {
		var err error
		switch name {
		case "a":
			report.Throughput, err = measureThroughput(ctx, lab, o)
		case "b":
			report.Start, err = measureStart(ctx, lab, o)
		case "c":
			report.Memory, err = measureMemory(ctx, lab)
		case "d":
			report.Attack, err = measureAttack(ctx, lab, o)
		default:
			err = errors.New("no such measurement; there are a, b, c and d")
		}
		if err != nil {
			return nil, fmt.Errorf("measurement %q: %w", name, err)
		}
	}
	return report, nil
}
