package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/top"
	"taskapi/internal/must"
)

// topJob is a task that counts in its output, one that writes what a terminal must not get, and one that waits.
const topJob = `
job "shop" {
  type = "batch"
  group "web" {
    task "counter" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "i=0; while :; do i=$((i+1)); echo count $i; sleep 0.02; done"]
      }
    }
    task "hostile" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          printf 'start \033]52;c;aGFja2Vk\007\033]2;hacked\007\033[?1049l\033[2J\033[5;5Hend\n'; exec sleep 1000
          EOT
        ]
      }
    }
    task "idle" {
      driver      = "raw_exec"
      kill_signal = "SIGTERM"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo run >> local/runs; trap 'echo got USR1 >&2' USR1; while :; do sleep 0.05; done"]
      }
    }
  }
}
`

// TestTop watches a running allocation on a real terminal and acts on it, while its taskapi is killed and comes back,
// until it is stopped.
func TestTop(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, topJob)
	alloc := datadir.Dir(dir).Alloc(testAllocID)
	term := newTerminal(t, 80, 24, "TASKAPI_DATA_DIR="+dir)
	p := startProcess(t, dir, file)
	until(t, p, "all run", func() bool { return written(filepath.Join(alloc, "idle", "local", "runs")) })

	term.runs("taskapi top")
	term.awaits("1 of 1 run", ">shop.web[0]", "3/3", "Tasks of shop.web[0]")
	term.keys("Enter")
	term.awaits("shop.web[0]", "tasks 3/3", ">counter", "Output of counter", "following")
	term.until("a usage", func(screen string) bool {
		return regexp.MustCompile(`>counter +running +[0-9.]+% +[0-9.]+ [KM]iB`).MatchString(screen)
	})
	if term.is("alternate_on") != "1" {
		t.Error("it does not use the alternate screen")
	}
	title := term.is("pane_title")
	term.keys("Down")
	term.awaits(">hostile", "start ^[]52;c;aGFja2Vk^G^[]2;hacked^G^[[?1049l^[[2J^[[5;5Hend", "tasks 3/3")
	if got := term.is("pane_title"); got != title || term.is("alternate_on") != "1" || term.tmux("list-buffers") != "" {
		t.Errorf("what a task wrote reached the terminal: title %q, clipboard %q", got, term.tmux("list-buffers"))
	}

	term.types("\x1b[<0;5;4M\x1b[<0;5;4m") // a click on the first task, and a turn of the wheel
	term.awaits(">counter", "Output of counter")
	term.types("\x1b[<65;5;4M")
	term.awaits(">idle", "Output of idle")
	term.keys("m")
	term.awaits("the mouse selects text")
	if term.is("mouse_any_flag") != "0" {
		t.Error("m does not give the mouse to the terminal")
	}
	term.keys("m")

	term.keys("End", "s") // a signal
	term.awaits("Signal to task idle: SIGHUP")
	term.types("sigusr1")
	term.keys("Enter")
	term.awaits("Send SIGUSR1 to task idle? y/N")
	term.keys("y")
	term.awaits("Output of idle", "! got USR1")

	term.keys("r") // a restart, refused and then confirmed
	term.awaits("Restart task idle? y/N")
	term.keys("n")
	term.awaits("not done")
	term.keys("r", "y")
	term.awaits("restart task idle: done")
	term.until("the restart in the table", func(screen string) bool {
		return regexp.MustCompile(`>idle +running .* 1 +- +\d+s`).MatchString(screen)
	})
	until(t, p, "the second process of the task", func() bool {
		return countLines(filepath.Join(alloc, "idle", "local", "runs")) == 2
	})
	term.keys("2")
	term.awaits("2 Events", "Restart Signaled")

	term.keys("x") // a command, whose output can be read, and a shell
	term.awaits("Run in task idle: /bin/sh")
	term.keys("C-u")
	term.types("echo I am $NOMAD_TASK_NAME; exit 3")
	term.keys("Enter")
	term.awaits("I am idle", "exit status 3", "Enter returns to taskapi top")
	term.keys("Enter")
	term.awaits("tasks 3/3", "exit status 3")
	term.keys("x", "Enter")
	term.awaits("\n#", "returns to taskapi top") // the first command's line, above the prompt
	term.types("echo shell of $NOMAD_TASK_NAME; exit")
	term.keys("Enter")
	term.awaits("tasks 3/3", "/bin/sh: done")

	term.keys("1", "Home")
	term.awaits(">counter")
	kill(t, p)
	term.awaits("AWAY", "No taskapi answers", ">counter")
	p = startProcess(t, dir, file)
	term.awaits("tasks 3/3")
	last := lastCount(term.screen())
	term.until("output of the counter after the crash", func(screen string) bool { return lastCount(screen) > last+10 })

	term.keys("S")
	term.awaits("Stop shop.web[0] (" + testAllocID[:8] + ") with 3 tasks? It can't be started again. y/N")
	term.keys("Enter")
	term.awaits("not done", "tasks 3/3")
	term.keys("S", "y")
	term.awaits("  complete  ", "the last that was seen")
	if err := p.Wait(); err != nil {
		t.Errorf("taskapi run: %v", err)
	}
	term.keys("Escape")
	term.awaits("0 of 1 run", ">shop.web[0]", "complete")
	term.keys("q")
	term.awaits("ready>")
	term.runs("echo code $?")
	term.awaits("code 0")
	term.restored()
}

// lastCount returns the greatest number that the counter has on the screen.
func lastCount(screen string) (last int) {
	for _, found := range regexp.MustCompile(`count (\d+)`).FindAllStringSubmatch(screen, -1) {
		last = max(last, atoi(found[1]))
	}
	return last
}

// TestTopEndsCleanly by every way out: the terminal is as it was, and the exit code says how it ended.
func TestTopEndsCleanly(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	p := startProcess(t, dir, jobFile(t, trueJob))
	must.OK(t, p.Wait())
	signals := func(sig syscall.Signal) func(*terminal) {
		return func(term *terminal) {
			if err := syscall.Kill(atoi(term.file("pid")), sig); err != nil {
				t.Error(err)
			}
		}
	}
	for name, tc := range map[string]struct {
		end  func(*terminal)
		env  string
		code string
		says string
	}{
		"q":             {func(term *terminal) { term.keys("q") }, "", "0", ""},
		"ctrl-c":        {func(term *terminal) { term.keys("C-c") }, "", "0", ""},
		"in a question": {func(term *terminal) { term.keys("/", "C-c") }, "", "0", ""},
		"term":          {signals(syscall.SIGTERM), "", "0", ""},
		"hup":           {signals(syscall.SIGHUP), "", "0", ""},
		"int":           {signals(syscall.SIGINT), "", "0", ""},
		"panic":         {func(*terminal) {}, "TASKAPI_TEST_TOP=panic", "1", "a panic of the test"},
		"vt100":         {func(term *terminal) { term.keys("q") }, "TERM=vt100", "0", ""},
		"linux":         {func(term *terminal) { term.keys("q") }, "TERM=linux", "0", ""},
		"xterm":         {func(term *terminal) { term.keys("q") }, "TERM=xterm-256color", "0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := newTerminal(t, 80, 24, "TASKAPI_DATA_DIR="+dir)
			term.runs(tc.env + " sh -c 'echo $$ > $HOME/pid; exec taskapi top " + testAllocID + "'; echo code $?")
			if tc.says == "" {
				term.awaits("complete (0)", "true.g[0]")
			}
			tc.end(term)
			term.awaits("code "+tc.code, tc.says)
			term.restored()
		})
	}
}

// topForTest is the screen in a process of its own, in which something goes wrong.
func topForTest() {
	terminal := top.Terminal{In: os.Stdin, Out: os.Stdout, Env: os.Environ()}
	found := func(context.Context) ([]top.Found, error) {
		return []top.Found{{ID: testAllocID, Open: func() top.Source { return panics{} }}}, nil
	}
	err := top.Run(context.Background(), top.Config{Find: found, Clock: time.Now, Terminal: terminal})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// panics is a source that does.
type panics struct{ top.Source }

func (panics) Stats(context.Context) (*api.AllocResourceUsage, error) { return nil, top.ErrUnavailable }
func (panics) Checks(context.Context) (api.AllocCheckStatuses, error) { return nil, top.ErrUnavailable }
func (panics) Close()                                                 {}
func (panics) Refusals(context.Context) (map[string][]*api.TaskEvent, error) {
	return nil, top.ErrUnavailable
}
func (panics) Allocation(context.Context, uint64) (top.Snapshot, error) { panic("a panic of the test") }

// TestTopNeedsATerminal says what else there is.
func TestTopNeedsATerminal(t *testing.T) {
	t.Parallel()
	term := newTerminal(t, 80, 24)
	for line, want := range map[string]string{
		"taskapi top | cat":       "top needs a terminal",
		"taskapi top < /dev/null": "top needs a terminal",
		"TERM=dumb taskapi top":   "TERM=\"dumb\"",
		"TERM= taskapi top":       "TERM=\"\"",
	} {
		term.runs("clear; " + line + "; echo ended")
		term.awaits("ended\n", want, "taskapi top --once")
	}
}

// TestTopFollowsOutput across the death of the taskapi: nothing is lost, nothing comes twice.
func TestTopFollowsOutput(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, topJob)
	p := startProcess(t, dir, file, "-o", "identity.ttl=1s")
	until(t, p, "all run", func() bool {
		return written(filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "idle", "local", "runs"))
	})
	files := allocrunner.Files(datadir.Dir(dir).Alloc(testAllocID), &api.TaskGroup{})
	sdk := top.NewSDK(client.New(datadir.Dir(dir), testAllocID), testAllocID, files)
	defer sdk.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()

	var output top.Output
	until(t, p, "an output", func() (ok bool) {
		var err error
		output, err = sdk.Output(ctx, "counter", "stdout")
		return err == nil
	})
	var text strings.Builder
	read := func(lines int) {
		t.Helper()
		for want := strings.Count(text.String(), "\n") + lines; strings.Count(text.String(), "\n") < want; {
			chunk, err := output.Next()
			if ctx.Err() != nil {
				t.Fatalf("%v after %d bytes: %v", ctx.Err(), text.Len(), err)
			}
			if chunk.Gap {
				t.Error("it says that something is missing")
			}
			text.Write(chunk.Text) // with an error nothing
		}
	}
	read(150) // three tokens
	kill(t, p)
	p = startProcess(t, dir, file, "-o", "identity.ttl=1s")
	read(100)
	checked := 0
	for line := range strings.Lines(text.String()) {
		if checked++; strings.HasSuffix(line, "\n") && line != fmt.Sprintf("count %d\n", checked) {
			t.Fatalf("line %d is %q", checked, line)
		}
	}
	var snapshot top.Snapshot
	until(t, p, "an answer", func() (ok bool) { // a busy machine takes longer for one than a token may live
		var err error
		snapshot, err = sdk.Allocation(ctx, 0)
		return err == nil
	})
	if snapshot.Ended || snapshot.Alloc.TaskStates["idle"].State != "running" {
		t.Errorf("%+v", snapshot)
	}
	cancel()
	endsOf(t, p, syscall.SIGTERM)
	if last, err := sdk.Allocation(t.Context(), 0); err != nil || !last.Ended ||
		last.Alloc.ClientStatus != api.AllocClientStatusComplete {
		t.Errorf("after the end: %+v, %v", last, err)
	}
}
