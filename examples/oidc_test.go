package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOIDCVerifier runs the tests of the service that knows its callers by their identities, in the module that it has
// for its library. They pass, and fail for a service that forgets a check.
func TestOIDCVerifier(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	program := filepath.Join(bin, "oidc-verifier.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-trimpath", "-o", program, ".")
	build.Dir = "oidc-verifier"
	build.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0") // this module's flags are not the other's
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for wrong, says := range map[string]string{
		"": "PASS", "expiry": "expired is accepted", "audience": "wrong-audience is accepted",
		"issuer": "wrong-issuer is accepted",
	} {
		test := exec.CommandContext(t.Context(), program, "-wrong="+wrong)
		test.Dir = "oidc-verifier"
		test.Env = append(os.Environ(), "TASKAPI="+filepath.Join(bin, "taskapi"))
		out, err := test.CombinedOutput()
		if (err == nil) != (wrong == "") || !strings.Contains(string(out), says) {
			t.Errorf("a service that forgets %q: %v, want %q in\n%s", wrong, err, says, out)
		}
	}
}
