package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/identity"
	"taskapi/internal/disktest"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// orderlyJob is a task that says that it got its kill signal, and one that follows it. Both have an identity.
const orderlyJob = `
job "orderly" {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "main" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          trap 'echo signalled >> local/signalled; exit 0' INT; touch local/there
          while :; do sleep 0.05; done
          EOT
        ]
      }
    }
    task "last" {
      driver = "raw_exec"
      lifecycle {
        hook = "poststop"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "echo run >> local/runs"]
      }
    }
  }
}
`

// abandoned returns an allocation of orderlyJob that a killed taskapi has left running, with files of every kind that a
// flag may name.
func abandoned(t *testing.T, dir string) (files map[string]string) {
	t.Helper()
	side := t.TempDir()
	taskapi(t, "keyring", "list", "--data-dir", newKeyring(t, filepath.Join(side, "other")))
	files = map[string]string{
		"policy": writeFile(t, filepath.Join(side, "policy.hcl"),
			"task \"main\" {\n  capabilities = [\"read-job\"]\n}\n"),
		"identity.jwks": writeFile(t, filepath.Join(side, "jwks.json"), taskapi(t, "keyring", "export", "--data-dir",
			filepath.Join(side, "other"))),
		"keyring.seal_key": writeFile(t, filepath.Join(side, "seal.key"), strings.Repeat("k", 32)),
		"audit.path":       filepath.Join(side, "audit.log"),
	}
	flags := []string{"-o", "allow_shared_user=true"}
	for key, file := range files {
		flags = append(flags, "-o", key+"="+file)
	}
	p := startProcess(t, dir, writeFile(t, filepath.Join(side, "job.nomad.hcl"), orderlyJob), flags...)
	there := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "main", "local", "there")
	until(t, p, "the task runs", func() bool { return exists(there) })
	kill(t, p)
	return files
}

// newKeyring makes a data directory with a key ring.
func newKeyring(t *testing.T, dir string) string {
	t.Helper()
	must.Get(identity.OpenKeyring(identity.KeyringConfig{Dir: datadir.Dir(dir).Keyring()}))(t)
	return dir
}

// wantStopped runs taskapi stop, which has to stop an abandoned allocation gracefully, whatever it can't do, and to say
// what that is.
func wantStopped(t *testing.T, dir string, wantCode int, wantSaid string) {
	t.Helper()
	var said polltest.Log
	if code := cli.Run(t.Context(), []string{"stop", "--data-dir", dir, testAllocID},
		testEnvironment(&said, &said)); code != wantCode {
		t.Errorf("exit code %d, want %d", code, wantCode)
	}
	if !strings.Contains(said.String(), wantSaid) {
		t.Errorf("it does not say %q", wantSaid)
	}
	alloc := datadir.Dir(dir).Alloc(testAllocID)
	if signals := countLines(filepath.Join(alloc, "main", "local", "signalled")); signals != 1 {
		t.Errorf("the task got %d signals", signals)
	}
	if left := processesOf(t, dir); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
	if t.Failed() {
		t.Log(said.String())
	}
}

// TestStopNeedsNoFileOfTheAPI stops an allocation whose taskapi was killed, gracefully and with its poststop task, also
// when files are damaged or missing that only the API needs.
func TestStopNeedsNoFileOfTheAPI(t *testing.T) {
	for name, damage := range map[string]func(dir string, files map[string]string) error{
		"nothing": func(string, map[string]string) error { return nil },
		"damaged key ring": func(dir string, _ map[string]string) error {
			keys, err := os.ReadDir(datadir.Dir(dir).Keyring())
			for _, key := range keys {
				err = errors.Join(err, os.WriteFile(filepath.Join(datadir.Dir(dir).Keyring(), key.Name()), []byte("damaged"),
					0o600))
			}
			return err
		},
		"no policy":   func(_ string, files map[string]string) error { return os.Remove(files["policy"]) },
		"no jwks":     func(_ string, files map[string]string) error { return os.Remove(files["identity.jwks"]) },
		"no seal key": func(_ string, files map[string]string) error { return os.Remove(files["keyring.seal_key"]) },
		"a directory in the place of the audit log": func(_ string, files map[string]string) error {
			return errors.Join(os.Remove(files["audit.path"]), os.Mkdir(files["audit.path"], 0o700))
		},
		"empty settings": func(dir string, _ map[string]string) error {
			return os.Truncate(filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "settings.json"), 0)
		},
		"a directory in the place of the operator's token": func(dir string, _ map[string]string) error {
			token := datadir.Dir(dir).OperatorToken(testAllocID)
			return errors.Join(os.Remove(token), os.Mkdir(token, 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			must.OK(t, damage(dir, abandoned(t, dir)))
			said := "without their API, which is unavailable: "
			switch name {
			case "nothing":
				said = "allocation is complete"
			case "a directory in the place of the operator's token": // the tasks have their API
				said = "a hook failed before the stop, which goes on"
			}
			wantStopped(t, dir, base.ExitOK, said)
			saved, err := datadir.Dir(dir).Saved(testAllocID)
			if err != nil || !saved.Terminal || saved.Alloc.ClientStatus != api.AllocClientStatusComplete {
				t.Errorf("the allocation is %+v, %v", saved, err)
			}
			sockets, err := filepath.Glob(filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "*", "secrets", datadir.SocketName))
			if _, statErr := os.Lstat(datadir.Dir(dir).OperatorSocket(testAllocID)); err != nil || len(sockets) > 0 ||
				!errors.Is(statErr, fs.ErrNotExist) {
				t.Errorf("sockets are left: %q (%v), the operator's: %v", sockets, err, statErr)
			}
			if runs := countLines(filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "last", "local", "runs")); runs != 1 {
				t.Errorf("the poststop task ran %d times", runs)
			}
		})
	}
}

// TestStopNeedsNoState: the tasks end, whatever there is in its place.
func TestStopNeedsNoState(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"a directory":        func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"a FIFO":             func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) },
		"others can write":   func(path string) error { return os.Chmod(path, 0o666) },
		"three sparse GB":    func(path string) error { return os.Truncate(path, 3<<30) },
		"a link to nowhere":  func(path string) error { return errors.Join(os.Remove(path), os.Symlink("nowhere", path)) },
		"not taskapi's text": func(path string) error { return os.WriteFile(path, []byte("text"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			_ = abandoned(t, dir)
			must.OK(t, damage(datadir.Dir(dir).State(testAllocID)))
			var said polltest.Log
			code := cli.Run(t.Context(), []string{"stop", "--data-dir", dir, testAllocID}, testEnvironment(&said, &said))
			if code != base.ExitOK || !strings.Contains(said.String(), "its tasks were killed") {
				t.Errorf("exit code %d: %s", code, said.String())
			}
			if left := processesOf(t, dir); len(left) > 0 {
				t.Errorf("left running: %q", left)
			}
		})
	}
}

// TestStopOnAReadOnlyDisk ends the tasks all the same, and says that nothing could be written down; when it can,
// another stop does.
func TestStopOnAReadOnlyDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	t.Parallel()
	dir := shortDir(t)
	_ = abandoned(t, dir)
	// Those who write there keep a disk from being mounted for reading alone. A view of its own is as good: the keeper is
	// another process.
	cmd := exec.Command("/bin/sh", "-c", `mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77; exec "$0" `+
		`stop --data-dir "$@"`, self(t), dir, testAllocID)
	cmd.Env = append(os.Environ(), "TASKAPI_TEST_MAIN=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	said, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() == 77 {
		t.Skipf("mount: %v: %s", err, said)
	}
	if cmd.ProcessState.ExitCode() != base.ExitFailed ||
		!strings.Contains(string(said), "have ended, and that could not be written to ") {
		t.Errorf("%v: %s", err, said)
	}
	if left := processesOf(t, dir); len(left) > 0 {
		t.Errorf("left running: %q\n%s", left, said)
	}
	if signals := countLines(filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "main", "local",
		"signalled")); signals != 1 {
		t.Errorf("the task got %d signals:\n%s", signals, said)
	}
	taskapi(t, "stop", "--data-dir", dir, testAllocID)
	if saved, err := datadir.Dir(dir).Saved(testAllocID); err != nil || !saved.Terminal {
		t.Errorf("after another stop: %+v, %v", saved, err)
	}
}

// TestStopOnADiskThatNeverHadTheState says, as a success, that the tasks have ended: no later command finds them
// running.
func TestStopOnADiskThatNeverHadTheState(t *testing.T) {
	t.Parallel()
	large := strings.Replace(isolatedJob, `group "g" {`, "group \"g\" {\n meta { x = \""+strings.Repeat("x", 60_000)+
		"\" }", 1)
	file := jobFile(t, large)
	// too little for the state, and enough for what else a task needs
	for kilobytes := 36; kilobytes <= 120; kilobytes += 4 {
		dir := disktest.Mount(t, fmt.Sprintf("size=%dk,mode=711", kilobytes)).Dir
		p := startProcess(t, dir, file)
		ended := make(chan error, 1)
		go func() { ended <- p.Wait() }()
		until(t, p, "the task starts or fails to", func() bool {
			return strings.Contains(p.out.String(), "  Started  ") || len(ended) > 0
		})
		saved, err := datadir.Dir(dir).Peek(testAllocID)
		if len(ended) > 0 || saved != nil || err != nil {
			_ = p.Process.Kill() // it may have ended
			<-ended
			taskapi(t, "stop", "--now", "--data-dir", dir, testAllocID)
			continue
		}
		var said polltest.Log
		if code := cli.Run(t.Context(), []string{"stop", "--data-dir", dir, testAllocID},
			testEnvironment(&said, &said)); code != base.ExitOK {
			t.Errorf("exit code %d", code)
		}
		if !strings.Contains(said.String(), "have ended, and that could not be written to ") {
			t.Errorf("it has said: %s", said.String())
		}
		if left := processesOf(t, dir); len(left) > 0 {
			t.Errorf("left running: %q", left)
		}
		<-ended
		return
	}
	t.Error("on no such disk a task runs whose allocation was never saved")
}

// TestStopWithoutAGoodToken stops an allocation whose taskapi runs and takes no token that stop has, by a signal. The
// taskapi puts a good one in its place when the keys change, and every half a minute.
func TestStopWithoutAGoodToken(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	p := startProcess(t, dir, jobFile(t, orderlyJob))
	there := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "main", "local", "there")
	until(t, p, "the task runs", func() bool { return exists(there) })
	token := writeFile(t, datadir.Dir(dir).OperatorToken(testAllocID), "damaged")
	taskapi(t, "keyring", "rotate", "--data-dir", dir)
	until(t, p, "the token is replaced", func() bool {
		text, err := os.ReadFile(token)
		return err == nil && string(text) != "damaged"
	})
	writeFile(t, token, "damaged") // for half a minute
	wantStopped(t, dir, base.ExitOK, "by a signal to process "+strconv.Itoa(p.Process.Pid))
	if t.Failed() {
		return // it may never end
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// TestStopKillsWhatAnEndedAllocationHasLeft has a state say that the allocation has ended while its task runs: gc
// leaves it alone, and stop kills the task.
func TestStopKillsWhatAnEndedAllocationHasLeft(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	p := startProcess(t, dir, jobFile(t, isolatedJob))
	until(t, p, "started the task", func() bool { return strings.Contains(p.out.String(), "Started") })
	kill(t, p)
	db, err := state.Open(datadir.Dir(dir).State(testAllocID), version)
	if err == nil {
		err = errors.Join(db.Put(interfaces.Saved{Terminal: true}), db.Close())
	}
	must.OK(t, err)
	for _, tc := range []struct {
		command, want string
		code          int
	}{
		{"gc", "tasks of it are still running", base.ExitFailed},
		{"stop", "its tasks were killed (1 process)", base.ExitOK},
		{"stop", "has already ended", base.ExitOK},
		{"gc", "removed", base.ExitOK},
	} {
		var out polltest.Log
		if code := cli.Run(t.Context(), []string{tc.command, "--data-dir", dir, testAllocID},
			testEnvironment(&out, &out)); code != tc.code || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: code %d, want %d: %s", tc.command, code, tc.code, out.String())
		}
	}
	if left := belongingTo(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
