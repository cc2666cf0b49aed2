package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"taskapi/internal/must"
)

// recorder is a curl that notes what it was given before it does its work. Process arguments are for everybody on the
// machine to read.
const recorder = `#!/bin/sh
printf '%s\n' "$@" >> "$ARGUMENTS"
PATH=${PATH#*:}
exec curl "$@"
`

// taskEnvironment sets what the greeter has in its environment.
const taskEnvironment = `
DIR=$(taskapi status "$ALLOC" | awk '/^Directory/ {print $2}')
for process in /proc/[0-9]*; do
	vars=$(tr '\0' '\n' <$process/environ 2>/dev/null |
		grep -xE "NOMAD_(ALLOC_ID|TASK_NAME|UNIX_ADDR|TOKEN)=.*") || continue
	case $vars in *"NOMAD_ALLOC_ID=$ALLOC"*NOMAD_TASK_NAME=greeter*) eval "export $(echo $vars)" ;; esac
done`

// checkSucceeds waits for the first success of the check, as a person who reads on does.
const checkSucceeds = `until taskapi api '/v1/client/allocation/{alloc}/checks' | grep -q '"Status":"success"'; do ` +
	`sleep 0.05; done`

// TestReadme follows the README word by word, with sh, as this user and as one who is not root: every command of "Quick
// start" and the curl of "A task uses its socket" do what they say, and none of them shows a token in the arguments of
// a process.
func TestReadme(t *testing.T) {
	bin := programs(t)
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
	place := must.ShortDir(t)
	here, err := os.Getwd()
	must.OK(t, err)
	arguments := filepath.Join(place, "arguments")
	for _, err := range []error{
		os.Chmod(place, 0o755),
		os.CopyFS(filepath.Join(place, "examples"), os.DirFS(here)),
		os.Mkdir(filepath.Join(place, "home"), 0o711), // tasks of other users pass through
		os.Mkdir(filepath.Join(place, "recorder"), 0o755),
		os.WriteFile(arguments, nil, 0o666),
		os.Chmod(arguments, 0o666),
	} {
		must.OK(t, err)
	}
	must.Program(t, filepath.Join(place, "recorder", "curl"), []byte(recorder))
	isRoot := as == nil && os.Geteuid() == 0
	cmd := exec.CommandContext(t.Context(), "sh", "-c", readmeScript(t, here, isRoot))
	cmd.Dir = place
	cmd.Env = []string{"HOME=" + filepath.Join(place, "home"), "PATH=" + filepath.Join(place, "recorder") + ":" + bin +
		":" + os.Getenv("PATH"), "ARGUMENTS=" + arguments}
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
	for _, want := range []string{" would run: ", "running", "greeter | hello from greeter", "success  greets", "uid=",
		"Restart Signaled", "allocation is complete"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nothing says %q:\n%s", want, out)
		}
	}
	if n := strings.Count(string(out), `"Status":"success"`); n != 1 {
		t.Errorf("the task's curl got %d answers, not one:\n%s", n, out)
	}
	given, err := os.ReadFile(arguments)
	if err != nil || !strings.Contains(string(given), "/api.sock") && !strings.Contains(string(given), "/run/") &&
		!strings.Contains(string(given), "/tmp/") {
		t.Errorf("curl was not called for the task's socket: %v\n%s", err, given)
	}
	if strings.Contains(string(given), "eyJ") { // how every JWT begins
		t.Errorf("a token is in the arguments of curl:\n%s", given)
	}
}

// readmeScript returns what the README has this user type. The allocation's ID is caught when it is printed, what a
// task has in its environment is set before the examples that need it, and the allocation is stopped at the end,
// whatever came of the rest.
func readmeScript(t *testing.T, here string, isRoot bool) string {
	text := must.Read(t, filepath.Join(here, "..", "README.md"))
	script := []string{"set -eu", "trap 'taskapi stop' EXIT"}
	for line := range strings.Lines(section(t, string(text), "Quick start")) {
		line, isCode := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    ")
		switch {
		case !isCode, strings.HasPrefix(line, "taskapi stop"): // the end comes last
		case strings.HasPrefix(line, "taskapi top"): // needs a terminal: see cmd/taskapi/top_test.go
		case strings.HasSuffix(line, "# as root") && !isRoot, strings.HasSuffix(line, "# as another user") && isRoot:
		case strings.HasPrefix(line, "taskapi run "):
			command, _, _ := strings.Cut(line, "#")
			script = append(script, "ALLOC=$("+command+")", checkSucceeds)
		default:
			script = append(script, line)
		}
	}
	script = append(script, checkSucceeds, taskEnvironment) // the last line has restarted the task
	fences := strings.Split(section(t, string(text), "A task uses its socket"), "```")
	for i := 1; i < len(fences); i += 2 {
		language, code, _ := strings.Cut(fences[i], "\n")
		if language == "sh" && strings.Contains(code, "curl ") {
			script = append(script, code)
		}
	}
	return strings.Join(script, "\n")
}

// TestReadmeCommands: the README lists the commands that the help lists, in the same groups and order.
func TestReadmeCommands(t *testing.T) {
	help := must.Get(exec.CommandContext(t.Context(), filepath.Join(programs(t), "taskapi"), "--help").Output())(t)
	var want []string
	for _, found := range regexp.MustCompile(`(?m)^  ([a-z]+)  .*$`).FindAllSubmatch(help, -1) {
		want = append(want, string(found[1]))
	}
	var got []string
	list := section(t, documents(t)[filepath.Join(root, "README.md")], "More")
	for _, line := range regexp.MustCompile("(?m)^- [a-z ]+: (`[a-z]+`(?:, `[a-z]+`)*)").FindAllStringSubmatch(list, -1) {
		for name := range strings.SplitSeq(line[1], ", ") {
			got = append(got, strings.Trim(name, "`"))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the README has the commands\n%v, the help\n%v", got, want)
	}
}

// section returns what stands under a heading of a document.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, "\n## "+heading+"\n")
	if !found {
		t.Fatalf("there is no section %q", heading)
	}
	text, _, _ = strings.Cut(rest, "\n## ")
	return text
}
