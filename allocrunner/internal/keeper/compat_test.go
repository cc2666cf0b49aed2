package keeper_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/keeper"
)

// A keeper outlives upgrades, and so do these messages: they are what the first builds said, and must be understood for ever.

// oldAnswers are those of a keeper of version 1 without additions, by operation; %d is the request's ID.
var oldAnswers = map[string]string{
	"start":    `{"ID":%d,"Status":{"Task":"t","PID":4711,"StartedAt":"2026-11-21T14:00:00.5Z","Exit":null}}`,
	"wait":     `{"ID":%d,"Exit":{"ExitCode":137,"Signal":9,"OOMKilled":false,"At":"2026-11-21T14:00:01Z","Err":""}}`,
	"signal":   `{"ID":%d,"Err":{"Kind":"notrunning","Text":"signal task \"t\": process not running"}}`,
	"killtree": `{"ID":%d,"Leftover":3}`,
	"list":     `{"ID":%d,"List":[{"Task":"t","PID":4711,"StartedAt":"2026-11-21T14:00:00.5Z","Exit":null}]}`,
	"close":    `{"ID":%d}`,
}

func writeFrame(w io.Writer, text string) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

func readFrame(r io.Reader) ([]byte, error) {
	var n uint32
	if err := binary.Read(r, binary.BigEndian, &n); err != nil {
		return nil, err
	}
	text := make([]byte, n)
	_, err := io.ReadFull(r, text)
	return text, err
}

// oldKeeper plays one in this process: it says hello and answers, and ends the connection after close.
func oldKeeper(t *testing.T, hello string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	self := identify(t, os.Getpid())
	record := fmt.Sprintf(`{"Keeper":{"PID":%d,"Start":%d,"Boot":%q},"Cgroup":"","Tasks":[],"Ended":false}`, self.PID, self.Start, self.Boot)
	if err := os.WriteFile(filepath.Join(dir, "keeper.json"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "keeper.sock"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		if _, err := readFrame(in); err != nil || writeFrame(conn, hello) != nil {
			t.Errorf("hello: %v", err)
			return
		}
		for {
			text, err := readFrame(in)
			if err != nil {
				return
			}
			var req struct {
				ID uint64
				Op string
			}
			if err := json.Unmarshal(text, &req); err != nil || oldAnswers[req.Op] == "" {
				t.Errorf("request %s, %v", text, err)
				return
			}
			if writeFrame(conn, fmt.Sprintf(oldAnswers[req.Op], req.ID)) != nil || req.Op == "close" {
				return
			}
		}
	}()
	return dir
}

// TestAnOlderKeeper does all that it could when it was made, and says clearly what it can't.
func TestAnOlderKeeper(t *testing.T) {
	c, err := keeper.Attach(t.Context(), oldKeeper(t, `{"Version":1}`))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Detach()
	if s, err := c.Start(t.Context(), driver.Spec{Task: "t", Path: "/bin/true", Dir: "/"}); err != nil || s.PID != 4711 || s.Exit != nil || s.StartedAt.IsZero() {
		t.Errorf("start: %+v, %v", s, err)
	}
	if exit, err := c.Wait(t.Context(), "t"); err != nil || exit.ExitCode != 137 || exit.Signal != 9 || exit.At.IsZero() {
		t.Errorf("wait: %+v, %v", exit, err)
	}
	if err := c.Signal(t.Context(), latest(t, c, "t"), unix.SIGHUP); !errors.Is(err, driver.ErrNotRunning) {
		t.Errorf("signal: %v", err)
	}
	if n, err := c.KillTree(t.Context(), latest(t, c, "t")); n != 3 || err != nil {
		t.Errorf("killtree: %d, %v", n, err)
	}
	if list, err := c.List(t.Context()); err != nil || len(list) != 1 || list[0].PID != 4711 {
		t.Errorf("list: %+v, %v", list, err)
	}
	_, err = c.Exec(t.Context(), driver.ExecSpec{Task: "t", Path: "/bin/true", Dir: "/"})
	if !errors.Is(err, keeper.ErrOlder) || !strings.Contains(err.Error(), "stop the allocation and run it again") {
		t.Errorf("exec: %v", err)
	}
}

// TestANewerKeeper of the same version is understood; one of another version is refused, and left as it is.
func TestANewerKeeper(t *testing.T) {
	c, err := keeper.Attach(t.Context(), oldKeeper(t, `{"Version":1,"Minor":99,"Mood":"sunny"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Detach()
	if list, err := c.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("list: %+v, %v", list, err)
	}
	_, err = keeper.Attach(t.Context(), oldKeeper(t, `{"Version":2}`))
	if !errors.Is(err, keeper.ErrVersion) || !strings.Contains(err.Error(), "speaks version 2") {
		t.Errorf("version 2: %v", err)
	}
}

// TestAnOlderClient is served by this keeper as it was by its own.
func TestAnOlderClient(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	conn, err := net.Dial("unix", filepath.Join(dir, "keeper.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(text string) map[string]any {
		t.Helper()
		if err := writeFrame(conn, text); err != nil {
			t.Fatal(err)
		}
		got, err := readFrame(conn)
		var answer map[string]any
		if err := errors.Join(err, json.Unmarshal(got, &answer)); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if a := ask(`{"Version":1}`); a["Version"] != 1.0 {
		t.Errorf("hello: %v", a)
	}
	<-c.Done()
	// Strings are base64 of "/bin/sh", "/", "-c", "exit 4".
	a := ask(`{"ID":1,"Op":"start","Task":"t","Spec":{"Task":"t","Path":"L2Jpbi9zaA==","Dir":"Lw==","Args":["LWM=","ZXhpdCA0"],"Env":[],` +
		`"User":{"Name":"","UID":0,"GID":0,"Groups":null,"Home":"","Shell":""},"Logs":{"Dir":"","Disabled":true,"MaxFiles":0,"MaxFileBytes":0},"OOMScoreAdj":0}}`)
	status, _ := a["Status"].(map[string]any)
	if a["ID"] != 1.0 || a["Err"] != nil || status["PID"] == 0.0 || status["Task"] != "t" {
		t.Errorf("start: %v", a)
	}
	a = ask(`{"ID":2,"Op":"wait","Task":"t"}`)
	if exit, _ := a["Exit"].(map[string]any); a["ID"] != 2.0 || exit["ExitCode"] != 4.0 {
		t.Errorf("wait: %v", a)
	}
	a = ask(`{"ID":3,"Op":"signal","Task":"t","Signal":15}`)
	if e, _ := a["Err"].(map[string]any); e["Kind"] != "notrunning" {
		t.Errorf("signal: %v", a)
	}
	if a := ask(`{"ID":4,"Op":"killtree","Task":"t"}`); a["Err"] != nil || a["ID"] != 4.0 {
		t.Errorf("killtree: %v", a)
	}
	a = ask(`{"ID":5,"Op":"list"}`)
	if list, _ := a["List"].([]any); len(list) != 1 {
		t.Errorf("list: %v", a)
	}
	a = ask(`{"ID":6,"Op":"dance"}`)
	if e, _ := a["Err"].(map[string]any); !strings.Contains(fmt.Sprint(e["Text"]), `unknown operation "dance"`) {
		t.Errorf("an operation of the future: %v", a)
	}
	if a := ask(`{"ID":7,"Op":"close"}`); a["Err"] != nil {
		t.Errorf("close: %v", a)
	}
	gone(t, c.Keeper())
}

// TestAnotherBuild takes over from a whole older program: TASKAPI_OLDER names one, such as the last release's.
func TestAnotherBuild(t *testing.T) {
	exe := os.Getenv("TASKAPI_OLDER")
	if exe == "" {
		t.Skip("TASKAPI_OLDER names no older build of taskapi")
	}
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir, Exe: exe})
	fifo := newFIFO(t, dir)
	status := run(t, c, shell(dir, "t", `echo $$ >$FIFO; trap "exit 9" USR1; echo up; echo $$ >$FIFO; while :; do sleep 0.01; done`))
	readPID(t, fifo)
	detach(t, c)
	readPID(t, fifo)
	next := attach(t, dir)
	if list, err := next.List(t.Context()); err != nil || len(list) != 1 || list[0].PID != status.PID {
		t.Fatalf("%+v, %v", list, err)
	}
	if result, err := next.Exec(t.Context(), driver.ExecSpec{Task: "t", Path: "/bin/true", Dir: "/"}); err != nil && !errors.Is(err, keeper.ErrOlder) {
		t.Errorf("exec: %+v, %v", result, err)
	}
	if err := next.Signal(t.Context(), latest(t, next, "t"), unix.SIGUSR1); err != nil {
		t.Error(err)
	}
	if exit, err := next.Wait(t.Context(), "t"); err != nil || exit.ExitCode != 9 {
		t.Errorf("%+v, %v", exit, err)
	}
	if n, err := next.KillTree(t.Context(), latest(t, next, "t")); err != nil {
		t.Errorf("%d, %v", n, err)
	}
	run(t, next, shell(dir, "t", "exit 0"))
}

// TestExecThroughTheKeeper: result, output so far with an error, and the end with the client.
func TestExecThroughTheKeeper(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	fifo := newFIFO(t, dir)
	status := run(t, c, shell(dir, "t", "exec sleep 1000"))
	beside := func(script string) driver.ExecSpec {
		s := shell(dir, "t", script)
		return driver.ExecSpec{Task: "t", Path: s.Path, Args: s.Args, Env: append(s.Env, "ODD=\xff"), Dir: s.Dir, MaxOutput: 100}
	}
	got, err := c.Exec(t.Context(), beside(`printf "$ODD"; echo err >&2; exit 3`))
	if err != nil || got.Exit.ExitCode != 3 || !bytes.Equal(got.Output, []byte("\xfferr\n")) || got.Truncated {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = c.Exec(t.Context(), driver.ExecSpec{Task: "t", Path: "/no/such", Dir: "/"})
	if start, ok := errors.AsType[*driver.StartError](err); !ok || !strings.Contains(start.Reason, "does not exist") {
		t.Errorf("no program: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		readPID(t, fifo)
		cancel()
	}()
	got, err = c.Exec(ctx, beside(`echo so far; echo $$ >$FIFO; exec sleep 1000`))
	if !errors.Is(err, context.Canceled) || string(got.Output) != "so far\n" {
		t.Errorf("%+v, %v", got, err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), beside(`echo $$ >$FIFO; exec sleep 1000`))
		failed <- err
	}()
	program := identify(t, readPID(t, fifo))
	detach(t, c)
	if err := <-failed; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after the client's end: %v", err)
	}
	gone(t, program)
	if !identify(t, status.PID).Runs() {
		t.Error("the task has ended, too")
	}
}
