package examples_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"taskapi/internal/must"
)

// TestWeb runs web.nomad.hcl with Debian's nginx and redis until it is healthy, and reads the page that the migration
// made: as this user, as root with a user for each task, and as another user.
func TestWeb(t *testing.T) {
	for _, program := range []string{"/usr/sbin/nginx", "/usr/bin/redis-server", "/usr/bin/redis-cli"} {
		if _, err := os.Stat(program); err != nil {
			t.Skip("nginx or redis-server is not installed")
		}
	}
	bin := programs(t)
	t.Run("this user", func(t *testing.T) { serveWeb(t, bin, nil) })
	t.Run("isolated", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, for --isolate-users")
		}
		serveWeb(t, bin, nil, "--isolate-users")
	})
	t.Run("another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to become another user")
		}
		serveWeb(t, bin, &syscall.Credential{Uid: 65534, Gid: 65534})
	})
}

func serveWeb(t *testing.T, bin string, as *syscall.Credential, flags ...string) {
	place := must.ShortDir(t)
	job, err := os.ReadFile("web.nomad.hcl")
	if err == nil {
		err = os.WriteFile(filepath.Join(place, "web.nomad.hcl"), job, 0o644)
	}
	if err == nil {
		err = os.Chmod(place, 0o755)
	}
	if err == nil && as != nil {
		err = os.Chown(place, int(as.Uid), int(as.Gid))
	}
	must.OK(t, err)
	taskapi := func(args ...string) string {
		t.Helper()
		command := exec.Command(filepath.Join(bin, "taskapi"), args...)
		command.Dir, command.Env = place, []string{"TASKAPI_DATA_DIR=" + filepath.Join(place, "data"), "PATH=/usr/bin:/bin"}
		command.SysProcAttr = &syscall.SysProcAttr{Credential: as}
		out, err := command.CombinedOutput()
		if err != nil {
			t.Errorf("taskapi %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	t.Cleanup(func() { taskapi("stop", "web") })
	if taskapi(append([]string{"run", "-d", "--wait"}, append(flags, "web.nomad.hcl")...)...); t.Failed() {
		t.Fatalf("%s\n%s", taskapi("checks", "web"), taskapi("logs", "web"))
	}
	address := strings.TrimSpace(taskapi("service", "info", "-t", "{{(index . 0).Address}}:{{(index . 0).Port}}", "web"))
	answer, err := http.Get("http://" + address)
	must.OK(t, err)
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || string(page) != "hello from redis\n" {
		t.Errorf("%d %q, %v", answer.StatusCode, page, err)
	}
}
