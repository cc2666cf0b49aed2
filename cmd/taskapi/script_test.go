package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"taskapi/allocrunner"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// TestScripts runs the program as people do: testdata/script/*.txtar, with the commands below besides testscript's own.
// Each has the files of testdata/shared.
//
//	exits CODE PROGRAM ARG...              run a program and require its exit code
//	start NAME PROGRAM ARG...              run one beside the script, into the files NAME.out and NAME.err
//	signal NAME SIGNAL                     send it a signal
//	ends NAME CODE                         wait for its end and require its exit code
//	await FILE PATTERN                     wait until the file has a line that matches
//	get SOCKET TOKENFILE PATH              ask the API, into stdout
//	json FILE PATH VALUE                   require the value at a path such as .Tasks.0.Name, as JSON; "-" for none
//	refused STATUS SOCKET TOKENFILE PATH   the same, to be answered with another status than 200
//	get-when-up SOCKET TOKENFILE PATH      the same, as soon as it answers
//	get-when SOCKET TOKENFILE PATH TEXT    the same, as soon as it answers with TEXT in its answer
//	events FILE [FIRST]                    require documented lines of run --json, the first of type FIRST or Starting
//	mode FILE MODE                         require a file's permissions, in octal
//	hold VARIABLE                          listen on a free port of 127.0.0.1 until the script ends
//	nothing-runs DIR                       require no process that works below DIR
//	nothing-left DIR                       the same, and no socket
//	repeat VARIABLE TEXT COUNT             a long value
//	said-by-processes DIR TEXT             require a process below DIR that has TEXT in its arguments; with ! none
//
// The programs, a thousand of them, run without the race detector, which they start in a fifth of the time. The other
// tests of this package run the program with it.
func TestScripts(t *testing.T) {
	must.OK(t, buildTaskapi(plain(), "-s -w"))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		WorkdirRoot:         openToAll(t),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			processes := processes{}
			env.Values[processesKey{}] = processes
			env.Defer(func() {
				processes.kill()
				for pid := range belongingTo(env.WorkDir) { // what a killed taskapi has left running, and those in the background
					_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
				}
			})
			env.Setenv("PATH", filepath.Dir(plain())+string(filepath.ListSeparator)+env.Getenv("PATH"))
			env.Setenv("D", filepath.Join(env.WorkDir, "d"))
			env.Setenv("ID", testAllocID)
			return errors.Join(os.CopyFS(env.WorkDir, os.DirFS("testdata/shared")), os.Chmod(env.WorkDir, 0o755))
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Geteuid() == 0, nil
			case "limits": // of memory and CPU
				return allocrunner.CanLimit() == nil, nil
			case "mounts": // a file system of its own in a directory of the machine's, seen by what it starts alone
				return exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/var/lib").Run() == nil, nil
			case "proc": // a /proc of its own
				hides := []string{"--mount", "--pid", "--fork", "--mount-proc", "mount", "-o", "remount,hidepid=2", "/proc"}
				return exec.Command("unshare", hides...).Run() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await":             await,
			"ends":              ends,
			"events":            events,
			"exits":             exits,
			"get":               get,
			"get-when":          getWhen,
			"get-when-up":       getWhenUp,
			"hold":              hold,
			"json":              checkJSON,
			"mode":              mode,
			"nothing-left":      nothingLeft,
			"nothing-runs":      nothingRuns,
			"refused":           wantRefused,
			"repeat":            repeat,
			"said-by-processes": saidByProcesses,
			"signal":            sendSignal,
			"start":             start,
		},
	})
}

// plain is the path of the program that scripts run.
func plain() string { return filepath.Join(programs, "plain", "taskapi") }

// openToAll makes the directory of the scripts, which another user may pass through, and opens the program to others,
// too: a script may run it as somebody else. The names are short, since sockets lie in it.
func openToAll(t *testing.T) string {
	dir := shortDir(t)
	for _, d := range []string{dir, programs} {
		must.OK(t, os.Chmod(d, 0o755))
	}
	return dir
}

// want requires a command's arguments to be exactly, or with a negative count at least, so many.
func want(ts *testscript.TestScript, neg bool, args []string, count int, usage string) {
	if neg || (count >= 0 && len(args) != count) || len(args) < -count {
		ts.Fatalf("usage: %s", usage)
	}
}

func number(ts *testscript.TestScript, s string) int {
	n, err := strconv.Atoi(s)
	ts.Check(err)
	return n
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, -2, "exits CODE PROGRAM ARG...")
	// One that does not end by itself is ended, and fails the script with the code 124: it would run until all tests are
	// given up.
	err := ts.Exec("timeout", append([]string{"--foreground", "-k", "5", "240"}, args[1:]...)...)
	exit, ok := errors.AsType[*exec.ExitError](err)
	if err != nil && !ok {
		ts.Fatalf("%v", err)
	}
	code := 0
	if ok {
		code = exit.ExitCode()
	}
	if code != number(ts, args[0]) {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// processes are those that a script has started, by their names.
type processes map[string]*process

type processesKey struct{}

type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func (p processes) kill() {
	for _, one := range p {
		_ = one.cmd.Process.Kill() // it may have ended
		<-one.done
	}
}

// named returns the process that the script has started under a name.
func named(ts *testscript.TestScript, name string) *process {
	p, ok := ts.Value(processesKey{}).(processes)[name]
	if !ok {
		ts.Fatalf("nothing was started as %q", name)
	}
	return p
}

func start(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, -2, "start NAME PROGRAM ARG...")
	name := args[0]
	cmd := exec.Command(args[1], args[2:]...)
	if args[1] == "taskapi" {
		cmd = exec.Command(plain(), args[2:]...)
	}
	cmd.Dir = ts.MkAbs(".")
	for _, key := range []string{"HOME", "PATH", "TMPDIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "TASKAPI_CONFIG"} {
		cmd.Env = append(cmd.Env, key+"="+ts.Getenv(key))
	}
	for ext, stream := range map[string]*io.Writer{".out": &cmd.Stdout, ".err": &cmd.Stderr} {
		f, err := os.Create(ts.MkAbs(name + ext))
		ts.Check(err)
		defer f.Close()
		*stream = f
	}
	ts.Check(cmd.Start())
	p := &process{cmd, make(chan struct{})}
	ts.Value(processesKey{}).(processes)[name] = p
	go func() {
		_ = cmd.Wait() // ends looks at the exit code
		close(p.done)
	}()
}

var signals = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP,
	"TERM": syscall.SIGTERM,
	"USR1": syscall.SIGUSR1,
}

func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "signal NAME SIGNAL")
	sig, ok := signals[args[1]]
	if !ok {
		ts.Fatalf("unknown signal %q", args[1])
	}
	ts.Check(named(ts, args[0]).cmd.Process.Signal(sig))
}

func ends(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "ends NAME CODE")
	p := named(ts, args[0])
	select {
	case <-p.done:
	case <-time.After(polltest.Deadline()):
		ts.Fatalf("%s does not end; it has printed:\n%s", args[0], ts.ReadFile(args[0]+".out"))
	}
	if code := p.cmd.ProcessState.ExitCode(); code != number(ts, args[1]) {
		ts.Fatalf("%s: %v, want exit code %s; it has printed:\n%s%s", args[0], p.cmd.ProcessState, args[1],
			ts.ReadFile(args[0]+".out"), ts.ReadFile(args[0]+".err"))
	}
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "await FILE PATTERN")
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	var data []byte
	has := func() bool {
		data, _ = os.ReadFile(ts.MkAbs(args[0]))
		return pattern.Match(data)
	}
	if !polltest.Until(has) {
		ts.Fatalf("%s never has %q:\n%s", args[0], args[1], data)
	}
}

func get(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 3, "get SOCKET TOKENFILE PATH")
	ts.Check(ask(ts, args))
}

func wantRefused(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 4, "refused STATUS SOCKET TOKENFILE PATH")
	if err := ask(ts, args[1:]); err == nil || !strings.Contains(err.Error(), ": "+args[0]+" ") {
		ts.Fatalf("got %v, want status %s", err, args[0])
	}
}

func getWhenUp(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 3, "get-when-up SOCKET TOKENFILE PATH")
	askUntil(ts, args)
}

func getWhen(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 4, "get-when SOCKET TOKENFILE PATH TEXT")
	askUntil(ts, args)
}

// askUntil asks the API, into stdout, until it answers, with the text in its answer that a fourth argument is.
func askUntil(ts *testscript.TestScript, args []string) {
	var err error
	answered := func() bool {
		err = ask(ts, args)
		return err == nil
	}
	if !polltest.Until(answered) {
		ts.Fatalf("%v", err)
	}
}

// ask asks the API, into stdout. Its answer has to have the text that a fourth argument is.
func ask(ts *testscript.TestScript, args []string) error {
	token, err := os.ReadFile(ts.MkAbs(args[1]))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), polltest.Deadline())
	defer cancel()
	resp, err := send(ctx, args[0], string(token), http.MethodGet, args[2], "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", args[2], resp.Status)
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if len(args) > 3 && !bytes.Contains(answer, []byte(args[3])) {
		return fmt.Errorf("GET %s: no %q in %s", args[2], args[3], answer)
	}
	_, err = ts.Stdout().Write(answer)
	return err
}

func mode(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "mode FILE MODE")
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", info.Mode().Perm()); got != args[1] {
		ts.Fatalf("%s has mode %s, want %s", args[0], got, args[1])
	}
}

func checkJSON(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 3, "json FILE PATH VALUE")
	var value any
	if err := json.Unmarshal([]byte(ts.ReadFile(args[0])), &value); err != nil {
		ts.Fatalf("%s is not JSON: %v", args[0], err)
	}
	got := "-"
	if value, ok := at(value, strings.Split(args[1], ".")[1:]); ok {
		encoded, err := json.Marshal(value)
		ts.Check(err)
		got = string(encoded)
	}
	if got != args[2] {
		ts.Fatalf("%s has %s at %s, want %s", args[0], got, args[1], args[2])
	}
}

// at returns the value at a path of keys and indices.
func at(value any, path []string) (any, bool) {
	for _, step := range path {
		switch v := value.(type) {
		case map[string]any:
			next, ok := v[step]
			if !ok {
				return nil, false
			}
			value = next
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			value = v[i]
		default:
			return nil, false
		}
	}
	return value, true
}

// eventLine is a line of run --json, with every field that is documented.
type eventLine struct {
	Time                       time.Time
	Alloc, Task, Type, Message string
	Details                    map[string]string
}

func events(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, -1, "events FILE [FIRST]")
	first, last := "Starting", eventLine{}
	if len(args) > 1 {
		first = args[1]
	}
	for in := bufio.NewScanner(strings.NewReader(ts.ReadFile(args[0]))); in.Scan(); {
		l := eventLine{}
		dec := json.NewDecoder(strings.NewReader(in.Text()))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&l); err != nil {
			ts.Fatalf("%v: %s", err, in.Text())
		}
		if l.Time.IsZero() || l.Time.Location() != time.UTC || l.Alloc == "" || l.Type == "" || l.Message == "" {
			ts.Fatalf("a field is missing, or the time is not UTC: %s", in.Text())
		}
		if last.Type == "" && l.Type != first {
			ts.Fatalf("the first line is %s", in.Text())
		}
		last = l
	}
	if last.Type != "Ended" || last.Details["status"] == "" || last.Task != "" {
		ts.Fatalf("the last line is not the end with its status: %+v", last)
	}
}

func hold(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1, "hold VARIABLE")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv(args[0], strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

func repeat(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 3, "repeat VARIABLE TEXT COUNT")
	ts.Setenv(args[0], strings.Repeat(args[1], number(ts, args[2])))
}

func nothingLeft(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1, "nothing-left DIR")
	nothingRuns(ts, neg, args) // a taskapi in the background removes its socket after it has said that it ended
	dir := ts.MkAbs(args[0])
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type() == fs.ModeSocket {
			err = fmt.Errorf("socket %s is left", path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ts.Fatalf("%v", err)
	}
}

func saidByProcesses(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, false, args, 2, "said-by-processes DIR TEXT")
	found := belongingTo(ts.MkAbs(args[0]))
	if len(found) == 0 {
		ts.Fatalf("no process works below %s", args[0])
	}
	said := false
	for _, command := range found {
		said = said || strings.Contains(command, args[1])
	}
	if said == neg {
		ts.Fatalf("%q is said by processes: %v; they are %v", args[1], said, found)
	}
}

func nothingRuns(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1, "nothing-runs DIR")
	dir := ts.MkAbs(args[0])
	// A process that has been killed is gone from its directory a moment later.
	var left map[int]string
	none := func() bool {
		left = belongingTo(dir)
		return len(left) == 0
	}
	if !polltest.Until(none) {
		ts.Fatalf("processes are left: %v", left)
	}
}

// belongingTo returns the processes whose working directory is below dir, who name something in it, or who write to it,
// as those in the background do, with their commands.
func belongingTo(dir string) map[int]string {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	found := map[int]string{}
	for _, link := range links {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if pid <= 1 || pid == os.Getpid() {
			continue
		}
		cwd, _ := os.Readlink(link)
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		if strings.HasPrefix(cwd, dir+"/") || strings.Contains(string(command), dir+"/") ||
			strings.Contains(string(command), dir+"\x00") || writesInto(pid, dir) {
			found[pid] = strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found
}

// writesInto reports whether a process's standard output lies below dir.
func writesInto(pid int, dir string) bool {
	out, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", pid))
	return strings.HasPrefix(out, dir+"/")
}
