package checks_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/checks"
	"taskapi/internal/same"
)

func scriptCheck(name, command string, args ...string) api.ServiceCheck {
	c := tcpCheck(name)
	c.Type, c.Command, c.Args = "script", command, args
	return c
}

// shell runs a command as a process of this one, as a task's context would.
func shell(ctx context.Context, _ string, command []string) (checks.ExecResult, error) {
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
		return checks.ExecResult{Output: out, Code: exit.ExitCode()}, nil
	}
	return checks.ExecResult{Output: out}, err
}

func TestScript(t *testing.T) {
	sh := func(script string) api.ServiceCheck { return scriptCheck("c", "/bin/sh", "-c", script) }
	for name, c := range map[string]struct {
		check  api.ServiceCheck
		status string
		output string
	}{
		"good":    {sh("echo fine; echo and well >&2"), "success", "fine\nand well\n"},
		"silent":  {sh("exit 0"), "success", ""},
		"bad":     {sh("echo broken; exit 2"), "failure", "broken\n"},
		"quiet":   {sh("exit 7"), "failure", "nomad: exit code 7"},
		"warning": {sh("echo hm; exit 1"), "failure", "hm\n"},
		"much":    {sh("yes é | head -c 9000"), "success", strings.Repeat("é\n", 1024)},
		"no text": {sh(`printf 'a\377b'`), "success", "ab"},
		"not there": {scriptCheck("c", "/nonexistent"), "failure",
			"nomad: fork/exec /nonexistent: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			alloc := newAlloc()
			alloc.GetTaskGroup().Tasks = nil
			cfg := newConfig(withTask(alloc, "main", c.check))
			cfg.Exec = shell
			r := startWatched(t, cfg)
			got := r.await(t, "c")
			if got.Status != c.status || got.Output != c.output || got.StatusCode != 0 || got.Task != "main" {
				t.Errorf("got %+v, want %s %q", got, c.status, c.output)
			}
		})
	}
}

// The command is interpolated, needs no port, and runs in the task of the service, the check, or the service's task
// argument.
func TestScriptsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inCheck, inService := scriptCheck("check's", "cmd-${v}", "${v}", "b"), scriptCheck("service's", "x")
		inCheck.TaskName = "a"
		alloc := withTask(newAlloc(inCheck), "own", scriptCheck("own", "y"))
		alloc.GetTaskGroup().Services = append(alloc.GetTaskGroup().Services,
			&api.Service{Name: "s", Provider: "nomad", TaskName: "b", Checks: []api.ServiceCheck{inService}})
		alloc.GetTaskGroup().Tasks[1].Services[0].PortLabel = ""
		for _, name := range []string{"a", "b"} {
			alloc.GetTaskGroup().Tasks = append(alloc.GetTaskGroup().Tasks, &api.Task{Name: name})
		}
		cfg := newConfig(alloc)
		cfg.Replace = func(_, s string) string { return strings.ReplaceAll(s, "${v}", "1") }
		ran := make(chan string, 3)
		cfg.Exec = func(_ context.Context, task string, command []string) (checks.ExecResult, error) {
			ran <- task + ": " + strings.Join(command, " ")
			return checks.ExecResult{}, nil
		}
		start(t, cfg)
		time.Sleep(pastFirst)
		synctest.Wait()
		close(ran)
		got := map[string]bool{}
		for line := range ran {
			got[line] = true
		}
		same.As(t, map[string]bool{"a: cmd-1 1 b": true, "b: x": true, "own: y": true}, got, "commands")
	})
}

// One that runs for too long fails, with what it has printed until then.
func TestSlowScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(withTask(newAlloc(), "main", scriptCheck("c", "x")))
		cfg.Exec = func(ctx context.Context, _ string, _ []string) (checks.ExecResult, error) {
			<-ctx.Done()
			return checks.ExecResult{Output: []byte("begun\n")}, ctx.Err()
		}
		r := start(t, cfg)
		time.Sleep(pastFirst + time.Second)
		synctest.Wait()
		want := "nomad: the command ran longer than its timeout of 1s and was killed\nbegun"
		if got := byName(r)["c"]; got.Status != "failure" || got.Output != want {
			t.Errorf("got %+v, want a failure with %q", got, want)
		}
	})
}

// A script that ends its task's life in the middle of a run is ended, and reports nothing.
func TestScriptEndsWithItsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := newAlloc()
		cfg := newConfig(withTask(alloc, "main", scriptCheck("c", "x")))
		ended := 0
		cfg.Exec = func(ctx context.Context, _ string, _ []string) (checks.ExecResult, error) {
			<-ctx.Done()
			ended++
			return checks.ExecResult{}, ctx.Err()
		}
		r := start(t, cfg)
		time.Sleep(pastFirst)
		r.End("main")
		expectStatuses(t, r, map[string]string{"c": "pending"})
		same.As(t, 1, ended, "commands ended")
	})
}

func TestInvalidScripts(t *testing.T) {
	with := func(c api.ServiceCheck, exec checks.ExecFunc) checks.Config {
		cfg := newConfig(newAlloc(c))
		cfg.Exec = exec
		return cfg
	}
	inTask := scriptCheck("c", "x")
	inTask.TaskName = "server"
	for name, c := range map[string]struct {
		cfg  checks.Config
		want string
	}{
		"no command": {with(scriptCheck("c", ""), shell), `command is "": it is needed`},
		"no task":    {with(scriptCheck("c", "x"), shell), `task is "": it must name the task`},
		"no way":     {with(inTask, nil), "can't be run here"},
	} {
		t.Run(name, func(t *testing.T) {
			same.Says(t, checks.ErrInvalid, c.want, same.Err(checks.New(c.cfg)))
		})
	}
}
