package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"taskapi/internal/must"
)

// TestPythonClient runs the tests of the Python client in a task, as its own text says; among them are those of clients
// that are wrong.
func TestPythonClient(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	bin := programs(t)
	data := must.ShortDir(t)
	faults := filepath.Join(data, "faults.json")
	must.OK(t, os.WriteFile(faults, []byte(`{"faults": []}`), 0o600))
	command := exec.CommandContext(t.Context(), filepath.Join(bin, "taskapi"), "dev", "--data-dir", data, "--faults",
		faults, "-o", "limits.off=true", "--",
		"python3", "-m", "unittest", "-v", "test_client")
	command.Dir = "pythonclient"
	command.Env = append(os.Environ(), "DATA="+data, "PATH="+bin+":"+os.Getenv("PATH"), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
