package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// TestRotatesAsTheUser: logrotate, which root runs, does in the directory of the user taskapi only what this user may
// do.
func TestRotatesAsTheUser(t *testing.T) {
	if _, err := exec.LookPath("logrotate"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and logrotate")
	}
	text, err := os.ReadFile("etc/logrotate")
	must.OK(t, err)
	dir := t.TempDir()
	for _, way := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(way, 0o755); err != nil { //nolint:gosec // another user enters it
			t.Fatal(err)
		}
	}
	for _, name := range []string{"taskapi", "taskapi-user"} {
		logs := filepath.Join(dir, name) // of root, so that taskapi may rotate nothing there
		must.OK(t, os.Mkdir(logs, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(logs, "audit.log"), []byte("line\n"), 0o600))
	}
	config := filepath.Join(dir, "config")
	here := strings.NewReplacer("/var/log", dir, "su taskapi taskapi", "su 65534 65534", "/run/systemd/system",
		"/nonexistent").Replace(string(text))
	must.OK(t, os.WriteFile(config, []byte(here), 0o600))
	out, err := command(t, "logrotate", "--force", "--state", filepath.Join(dir, "state"), config).CombinedOutput()
	for name, rotates := range map[string]bool{"taskapi": true, "taskapi-user": false} {
		if _, missing := os.Stat(filepath.Join(dir, name, "audit.log.1")); (missing == nil) != rotates {
			t.Errorf("%s: rotated: %v, want %v; logrotate: %v\n%s", name, missing == nil, rotates, err, out)
		}
	}
}

// TestResumeUnitsEnds: resume-units does not wait for a unit that systemd has started again meanwhile.
func TestResumeUnitsEnds(t *testing.T) {
	dir := t.TempDir()
	const systemctl = `#!/bin/sh
echo "$@" >>"$CALLS"
case "$1" in
list-units) echo "taskapi@web.service loaded active running" ;;
show) grep -c '^show' "$CALLS" ;; # another number each time
start) echo "$2" ;;
esac
`
	fake := filepath.Join(dir, "systemctl")
	if err := os.WriteFile(fake, []byte(systemctl), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	cmd := command(t, "sh", "scripts/resume-units")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "CALLS="+filepath.Join(dir, "calls"))
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "taskapi@web.service\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
