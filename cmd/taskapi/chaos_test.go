package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

var chaosRounds = flag.Int("chaos", 3,
	"how often TestChaos kills each of the agent, the keeper, and both; an agent leaves a fifth as often (make soak)")

// chaosJob has a task that numbers its lines, from 1 with each process, and says the last number when it gets its kill
// signal, which its shell hears of between two commands: to count is one with to say it. It is sent a signal that harms
// nobody who does not expect it yet. And the job has a task whose nth process ends with the code n % 7 + 1.
const chaosJob = `
job "chaos" {
  group "g" {
    restart {
      attempts = 100000
      interval = "24h"
      delay    = "10ms"
    }
    task "lines" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          i=0; trap 'echo $$ end $i; exit 0' INT; trap 'echo x >> local/signals' WINCH; echo $$ >> local/runs
          while :; do echo $$ $((i=i+1)); sleep 0.01; done
          EOT
        ]
      }
    }
    task "codes" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $$ >> local/runs; n=$(wc -l < local/runs); sleep 0.07; exit $((n % 7 + 1))"]
      }
    }
  }
}
`

// chaos is an allocation that is not left in peace.
type chaos struct {
	t       *testing.T
	dataDir string
	file    string
	process taskapiProcess
	rounds  int
	answers []time.Duration // from the agent's start to the operator's first 200

	restarts, restartsTried int // of lines
	restarted               int // how many processes of lines had said so at the last answered restart
	signals, signalsTried   int
	keepersKilled           int
}

// TestChaos kills the agent, the keeper, or both, or has one agent leave to the next, at random moments, while tasks
// write, end, and are restarted and signalled. No line is lost or doubled, no exit code is wrong, no attempt is
// forgotten, there is never a second copy, and tokens and sockets are good again.
func TestChaos(t *testing.T) {
	t.Parallel()
	for victim, kill := range map[string]func(*chaos){
		"agent":   func(c *chaos) { kill(c.t, c.process); c.start() },
		"keeper":  (*chaos).killKeeper,
		"leaving": (*chaos).leave,
		"both": func(c *chaos) {
			if rand.IntN(2) == 0 {
				kill(c.t, c.process)
				c.killKeeper()
			} else {
				c.killKeeper()
				kill(c.t, c.process)
			}
			c.start()
		},
	} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			c := &chaos{t: t, rounds: *chaosRounds, dataDir: dir, file: jobFile(t, chaosJob)}
			if victim == "leaving" {
				c.rounds = max(c.rounds/5, 2) // a process that ends gracefully takes a second where the race detector is
			}
			c.run(kill)
		})
	}
}

func (c *chaos) run(hurt func(*chaos)) {
	for range 4 { // also before there is anything to go on with
		c.start()
		time.Sleep(rand.N(500 * time.Millisecond)) // a random moment is what is wanted
		kill(c.t, c.process)
	}
	c.start()
	c.untilAnswers()
	watching, stop := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop()
	watch.Go(func() { c.watchForCopies(watching) })
	for range c.rounds {
		if rand.IntN(2) == 0 { // a busy machine would otherwise never come so far, and there would be nothing to lose
			c.untilAtWork()
		}
		c.disturb()
		hurt(c)
		if rand.IntN(4) == 0 { // before it can have become ready, too
			time.Sleep(rand.N(60 * time.Millisecond)) // as above
			hurt(c)
		}
		c.untilAnswers()
		c.checkCodes()
		if c.t.Failed() {
			break
		}
	}
	until(c.t, c.process, "the task's socket answers to its token", func() bool {
		return taskAsks(datadir.Dir(c.dataDir).Alloc(testAllocID), "lines") == nil
	})
	c.untilAtWork()
	until(c.t, c.process, "lines is signalled", func() bool { return c.signal() == nil })
	until(c.t, c.process, "lines is restarted", func() bool { return c.restart() == nil })
	c.untilAtWork()
	c.end()
	slices.Sort(c.answers)
	c.t.Logf("from the start to the operator's first 200: median %v, longest %v, of %d", c.answers[len(c.answers)/2],
		c.answers[len(c.answers)-1], len(c.answers))
}

func (c *chaos) start(flags ...string) {
	if out := c.process.out; out != nil && strings.Contains(out.String(), "DATA RACE") {
		c.t.Fatal(out)
	}
	c.process = startProcess(c.t, c.dataDir, c.file, flags...)
}

func (c *chaos) path(parts ...string) string {
	return filepath.Join(append([]string{datadir.Dir(c.dataDir).Alloc(testAllocID)}, parts...)...)
}

// ask asks the operator's socket for something. It makes a connection for each request: the one before went with its
// agent.
func (c *chaos) ask(request func(*api.Allocations) error) error {
	client, err := operatorOf(c.dataDir, testAllocID)
	if err != nil {
		return err
	}
	defer client.Close()
	return request(client.Allocations())
}

// alloc returns the allocation as its agent answers, nil when none does.
func (c *chaos) alloc() (alloc *api.Allocation) {
	err := c.ask(func(allocs *api.Allocations) (err error) {
		alloc, _, err = allocs.Info(testAllocID, nil)
		return err
	})
	if err != nil {
		return nil
	}
	return alloc
}

func (c *chaos) untilAnswers() {
	began := time.Now()
	for c.alloc() == nil {
		if time.Since(began) > deadline {
			c.t.Fatalf("the operator's socket does not answer again:\n%s", c.process.out)
		}
		time.Sleep(5 * time.Millisecond) // another process's doing can only be polled for
	}
	c.answers = append(c.answers, time.Since(began))
}

// disturb restarts and signals, for a random time.
func (c *chaos) disturb() {
	for end := time.Now().Add(rand.N(150 * time.Millisecond)); time.Now().Before(end); {
		if rand.IntN(3) == 0 && c.linesRuns() > c.restarted {
			_ = c.restart() // not while there is nothing to restart
			continue
		}
		_ = c.signal()                            // as above
		time.Sleep(rand.N(20 * time.Millisecond)) // a random moment is what is wanted
	}
}

// restart has lines restarted.
func (c *chaos) restart() error {
	runs := c.linesRuns()
	c.restartsTried++
	err := c.ask(func(allocs *api.Allocations) error {
		return allocs.Restart(&api.Allocation{ID: testAllocID}, "lines", nil)
	})
	if err == nil {
		c.restarts++
		c.restarted = runs
	}
	return err
}

// signal has lines sent a signal.
func (c *chaos) signal() error {
	c.signalsTried++
	err := c.ask(func(allocs *api.Allocations) error {
		return allocs.Signal(&api.Allocation{ID: testAllocID}, nil, "lines", "SIGWINCH")
	})
	if err == nil {
		c.signals++
	}
	return err
}

// untilAtWork waits until a process of lines runs and has said so, after every restart that was answered.
func (c *chaos) untilAtWork() {
	c.t.Helper()
	until(c.t, c.process, "at work", func() bool {
		runs, _ := os.ReadFile(c.path("lines", "local", "runs"))
		pids := strings.Fields(string(runs))
		return len(pids) > c.restarted && slices.Contains(c.firstProcesses()["lines"], pids[len(pids)-1])
	})
}

// linesRuns counts the processes of lines that have come so far as to say so: one that gets its kill signal before that
// says nothing.
func (c *chaos) linesRuns() int { return countLines(c.path("lines", "local", "runs")) }

// leave makes the agent leave, as for an upgrade, while the next one is waiting already.
func (c *chaos) leave() {
	old := c.process
	if rand.IntN(2) == 0 {
		c.process = startTakeover(c.t, self(c.t), c.dataDir, testAllocID)
	} else {
		until(c.t, old, "at work", func() bool { // before that, it has nothing to leave, and does not hear of it
			return strings.Contains(old.out.String(), "Starting") || strings.Contains(old.out.String(), "Resuming")
		})
		must.OK(c.t, old.Process.Signal(syscall.SIGUSR1))
		// before that, it would get the same job
		until(c.t, old, "leaving", func() bool { return strings.Contains(old.out.String(), "Leaving") })
		c.start()
	}
	err := old.Wait()
	overtaken := strings.Contains(old.out.String(), "already, as allocation "+testAllocID) // by the one that takes over
	if err != nil && !overtaken {
		c.t.Errorf("left: %v\n%s", err, old.out)
	}
}

func (c *chaos) killKeeper() {
	c.keepersKilled += killKeeper(c.t, c.dataDir)
}

// firstProcesses returns the living first processes of the allocation's tasks, by task.
func (c *chaos) firstProcesses() map[string][]string {
	found := map[string][]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || variable(string(environ), "NOMAD_ALLOC_DIR") != c.path("alloc") {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest) // state, parent, process group, session
		pid := filepath.Base(dir)
		if err == nil && len(fields) > 3 && fields[3] == pid && fields[0] != "Z" && fields[0] != "X" {
			task := variable(string(environ), "NOMAD_TASK_NAME")
			found[task] = append(found[task], pid)
		}
	}
	return found
}

// watchForCopies looks again and again for a second process of a task. One that was seen while it was about to end is
// given time for it.
func (c *chaos) watchForCopies(ctx context.Context) {
	suspects := map[string]int{}
	for ctx.Err() == nil {
		for task, pids := range c.firstProcesses() {
			pair := fmt.Sprint(task, pids)
			if len(pids) < 2 {
				continue
			}
			if suspects[pair]++; suspects[pair] == 3 {
				c.t.Errorf("%d copies of %s run: processes %v", len(pids), task, pids)
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// checkCodes holds the exit codes that the allocation shows against those that the runs had. A process that was killed
// with its keeper has none, and a start that was lost with it is no run.
func (c *chaos) checkCodes() {
	c.t.Helper()
	before := countLines(c.path("codes", "local", "runs"))
	alloc := c.alloc()
	if alloc == nil {
		return // killed by a round that did not wait
	}
	state := alloc.TaskStates["codes"]
	after := countLines(c.path("codes", "local", "runs"))
	if c.keepersKilled == 0 && (before > int(state.Restarts)+1 || after < int(state.Restarts)) {
		c.t.Errorf("%d to %d runs of codes, and %d restarts are reported", before, after, state.Restarts)
	}
	// going back: the nth restart follows the end of the nth run
	run, restart := int(state.Restarts)+1, int(state.Restarts)
	for _, e := range slices.Backward(state.Events) {
		switch e.Type {
		case api.TaskRestarting:
			run, restart = restart, restart-1
		case api.TaskTerminated:
			want, got := strconv.Itoa(run%7+1), e.Details["exit_code"]
			if got != want && c.keepersKilled == 0 {
				c.t.Errorf("run %d ended with code %s, want %s; of %d restarts", run, got, want, state.Restarts)
			}
		}
	}
}

func countLines(path string) int {
	data, _ := os.ReadFile(path)
	return strings.Count(string(data), "\n")
}

// end stops the allocation and looks at what it has left.
func (c *chaos) end() {
	c.t.Helper()
	must.OK(c.t, c.process.Process.Signal(os.Interrupt))
	if err := c.process.Wait(); err != nil {
		c.t.Errorf("stopped: %v\n%s", err, c.process.out)
	}
	if left := processesOf(c.t, c.dataDir); len(left) != 0 {
		c.t.Errorf("left behind: %v", left)
	}
	c.checkLines()
	runs := c.linesRuns()
	if least, most := 1+c.restarts, 1+c.restartsTried+c.keepersKilled; runs < least || runs > most {
		c.t.Errorf("lines had %d processes; %d restarts were answered of %d, %d keepers were killed", runs, c.restarts,
			c.restartsTried, c.keepersKilled)
	}
	c.t.Logf("%d processes of lines, %d of codes; %d of %d restarts and %d of %d signals were answered",
		runs, countLines(c.path("codes", "local", "runs")), c.restarts, c.restartsTried, c.signals, c.signalsTried)
}

var numbered = regexp.MustCompile(`^(\d+) (end )?(\d+)$`)

// checkLines holds that every process's lines are there, each once and in order, to the one that it says was its last.
// A process that was killed with its keeper says nothing, and may be cut off in a line.
func (c *chaos) checkLines() {
	c.t.Helper()
	files, err := filepath.Glob(c.path("alloc", "logs", "lines.stdout.*"))
	if err != nil || len(files) != 1 {
		c.t.Fatalf("log files %v, %v", files, err)
	}
	text := must.Read(c.t, files[0])
	latest, ended, broken := map[string]int{}, 0, 0
	for line := range strings.Lines(string(text)) {
		parts := numbered.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if parts == nil {
			broken++
			continue
		}
		pid, n := parts[1], atoi(parts[3])
		switch {
		case parts[2] != "":
			ended++
			if latest[pid] != n {
				c.t.Errorf("process %s ended with line %d, and %d is there", pid, n, latest[pid])
			}
			delete(latest, pid) // its number may be used again
		case n != 1 && n != latest[pid]+1:
			c.t.Errorf("process %s: line %d after %d", pid, n, latest[pid])
			latest[pid] = n
		default:
			latest[pid] = n
		}
	}
	if broken > c.keepersKilled || len(latest) > c.keepersKilled {
		c.t.Errorf("%d broken lines and %d processes without a last line, with %d keepers killed", broken, len(latest),
			c.keepersKilled)
	}
	if ended == 0 {
		c.t.Error("no process said its last line")
	}
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}
