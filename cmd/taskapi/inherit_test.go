package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

// inheritJob has a task that says what it has inherited, and one of our user, whom the kernel leaves ambient
// capabilities.
const inheritJob = `
job "inherit" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      user   = "nobody"
      config {
        command = "/bin/bash"
        args    = ["-c", <<-EOT
          grep -E '^(Umask|SigBlk|SigIgn|CapInh|CapEff|CapAmb|NoNewPrivs):' /proc/self/status
          echo "OOM: $(cat /proc/self/oom_score_adj)"
          echo "Core: $(ulimit -Hc)"
          echo "Files: $(ulimit -Hn)"
          echo "Nice: $(cut -d' ' -f19 /proc/self/stat)"
          echo "Terminal: $(cut -d' ' -f7 /proc/self/stat)"
          echo "Keys: $(grep -c taskapi-inherit-test /proc/keys)"
          echo "Leaked: $(ls /proc/$$/fd | grep -c 9)"
          echo "Environment: $INHERIT_TEST"
        EOT
        ]
      }
    }
    task "ours" {
      driver = "raw_exec"
      config {
        command = "/bin/grep"
        args    = ["CapAmb", "/proc/self/status"]
      }
    }
  }
}
`

// TestWhatATaskInherits starts taskapi with odd values of everything that a process leaves to its children.
// docs/jobfiles.md says which of them a task has.
func TestWhatATaskInherits(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, program := range []string{"bash", "choom", "nice", "prlimit", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	score, wantScore := "-500", "0"
	if exec.Command("choom", "-n", score, "--", "true").Run() != nil { // CAP_SYS_RESOURCE is lacking
		score, wantScore = "300", "300"
	}
	dir := shortDir(t)
	must.OK(t, os.Chmod(dir, 0o711))
	dir = filepath.Join(dir, "data")
	p := newProcess("bash", "-c", `umask 077; trap "" HUP USR1; exec 9</etc/passwd
exec choom -n "$0" -- nice -n 5 prlimit --core=12288 --nofile=5000 -- \
	setpriv --inh-caps=+net_raw --ambient-caps=+net_raw -- "$@"`, score, self(t), "run", "-data-dir", dir, "-alloc-id",
		testAllocID, jobFile(t, inheritJob))
	p.Env = append(p.Env, "INHERIT_TEST=ours")
	keys := startWithKey(p.Cmd)
	if keys != nil {
		t.Logf("session keyrings are not looked at: %v", keys)
		must.OK(t, p.Start())
	}
	if err := p.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, p.out)
	}
	said := func(task string) map[string]string {
		log := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "alloc", "logs", task+".stdout.0")
		values := map[string]string{}
		for line := range strings.Lines(string(must.Get(os.ReadFile(log))(t))) {
			key, value, _ := strings.Cut(line, ":")
			values[key] = strings.TrimSpace(value)
		}
		return values
	}
	const none = "0000000000000000"
	want := map[string]string{
		"Umask": "0022", "SigBlk": none, "SigIgn": none, "CapEff": none, "CapAmb": none, "OOM": wantScore, "Terminal": "0",
		"Keys": "0", "Leaked": "0", "Environment": "",
		// inherited
		"Core": "12", "Files": "5000", "Nice": "5", "CapInh": fmt.Sprintf("%016x", 1<<unix.CAP_NET_RAW), "NoNewPrivs": "0",
	}
	if keys != nil { // a container without keys
		want["Keys"] = said("t")["Keys"]
	}
	if got := said("ours")["CapAmb"]; got != none {
		t.Errorf("a task of our user has the ambient capabilities %s", got)
	}
	if diff := cmp.Diff(want, said("t")); diff != "" {
		t.Errorf("what the task has (-want +got):\n%s", diff)
	}
}

// startWithKey starts a program with a session keyring that holds a key.
func startWithKey(cmd *exec.Cmd) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // which has the keyring, and ends with this goroutine
		var err error
		if _, _, errno := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); errno != 0 {
			err = errno
		}
		if err == nil {
			_, err = unix.AddKey("user", "taskapi-inherit-test", []byte("secret"), unix.KEY_SPEC_SESSION_KEYRING)
		}
		if err == nil {
			err = cmd.Start()
		}
		result <- err
	}()
	return <-result
}
