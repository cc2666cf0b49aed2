package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// recorder is a curl that notes what it was given before it does its work. Process arguments are for everybody on the machine to read.
const recorder = `#!/bin/sh
printf '%s\n' "$@" >> "$ARGUMENTS"
PATH=${PATH#*:}
exec curl "$@"
`

// taskEnvironment sets what the watcher has in its environment, and the token that it has in a file.
const taskEnvironment = `
for process in /proc/[0-9]*; do
	vars=$(tr '\0' '\n' <$process/environ 2>/dev/null | grep -xE "NOMAD_(ALLOC_ID|TASK_NAME|UNIX_ADDR)=.*") || continue
	case $vars in *"NOMAD_ALLOC_ID=$ALLOC"*NOMAD_TASK_NAME=watcher*) eval "$vars" ;; esac
done
NOMAD_TOKEN=$(cat $DIR/watcher/secrets/nomad_token)`

// watcherIsDone waits for the last word of the watcher.
const watcherIsDone = `
logs=$(bin/taskapi status "$ALLOC" | awk '/^Directory/ {print $2}')/alloc/logs
until grep -Eq '^(done|failed)' "$logs/watcher.stdout.0"; do sleep 0.05; done`

// TestReadme follows "Use it" of the README word by word, with sh, as this user and as one who is not root: every command does what it
// says, and none of them shows a token in the arguments of a process.
func TestReadme(t *testing.T) {
	bin := programs(t)
	if err := os.Chmod(filepath.Dir(bin), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Run("this user", func(t *testing.T) { followReadme(t, bin, nil) })
	t.Run("another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to become another user")
		}
		followReadme(t, bin, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	})
}

func followReadme(t *testing.T, bin string, as *syscall.SysProcAttr) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	place, err := os.MkdirTemp("", "readme") // short: sockets lie in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(place) })
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	arguments := filepath.Join(place, "arguments")
	for _, err := range []error{
		os.Chmod(place, 0o755),
		os.Symlink(bin, filepath.Join(place, "bin")),
		os.CopyFS(filepath.Join(place, "examples"), os.DirFS(here)),
		os.Mkdir(filepath.Join(place, "home"), 0o711), // tasks of other users pass through
		os.Mkdir(filepath.Join(place, "recorder"), 0o755),
		os.WriteFile(filepath.Join(place, "recorder", "curl"), []byte(recorder), 0o755),
		os.WriteFile(arguments, nil, 0o666),
		os.Chmod(arguments, 0o666),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	isRoot := as == nil && os.Geteuid() == 0
	cmd := exec.CommandContext(t.Context(), "sh", "-c", readmeScript(t, here, isRoot))
	cmd.Dir = place
	cmd.Env = []string{"HOME=" + filepath.Join(place, "home"), "PATH=" + filepath.Join(place, "recorder") + ":" + os.Getenv("PATH"), "ARGUMENTS=" + arguments}
	if as == nil { // root's own data directory is the machine's
		cmd.Env = append(cmd.Env, "TASKAPI_DATA_DIR="+filepath.Join(place, "home", "data"))
	} else if err := os.Chown(filepath.Join(place, "home"), int(as.Credential.Uid), int(as.Credential.Gid)); err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = as
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range []string{" would run: ", "Task \"server\": running", `"Status": "success"`, `"ClientStatus": "running"`, "allocation is complete"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nothing says %q:\n%s", want, out)
		}
	}
	given, err := os.ReadFile(arguments)
	if err != nil || strings.Count(string(given), "operator.sock") != 1 || strings.Count(string(given), "/api.sock") < 1 {
		t.Errorf("curl was not called for both sockets: %v\n%s", err, given)
	}
	if strings.Contains(string(given), "eyJ") { // how every JWT begins
		t.Errorf("a token is in the arguments of curl:\n%s", given)
	}
}

// readmeScript is what the README has this user type in "Use it", but for what needs this repository or the nomad command. What a task has in
// its environment is set before the example that needs it, and the allocation is stopped at the end, whatever came of the rest.
func readmeScript(t *testing.T, here string, isRoot bool) string {
	text, err := os.ReadFile(filepath.Join(here, "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok1 := strings.Cut(string(text), "\n## Use it\n")
	section, _, ok2 := strings.Cut(section, "\n## ")
	if !ok1 || !ok2 {
		t.Fatal("the README has no section \"Use it\"")
	}
	script := []string{"set -eu", "trap 'bin/taskapi stop' EXIT"}
	for line := range strings.Lines(section) {
		line, isCode := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    ")
		switch {
		case !isCode, strings.HasPrefix(line, "make "), strings.HasPrefix(line, "nomad "):
			continue
		case strings.HasSuffix(line, "# as root") && !isRoot, strings.HasSuffix(line, "# as another user") && isRoot:
			continue
		case strings.Contains(line, `"$NOMAD_TOKEN"`):
			script = append(script, taskEnvironment)
		}
		script = append(script, line)
		if strings.HasPrefix(line, "ALLOC=") { // a person who reads on is slower than the watcher's tour, which restarts the server, and the checks after it
			script = append(script, watcherIsDone, `until bin/taskapi api '/v1/client/allocation/{alloc}/checks' | grep -q '"Status":"success".*"Status":"success"'; do sleep 0.05; done`)
		}
	}
	return strings.Join(script, "\n")
}
