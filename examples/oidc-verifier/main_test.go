package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// wrong makes the service wrong, to see its tests fail.
var wrong = flag.String("wrong", "", "what the service forgets: expiry, audience or issuer")

// taskapi is the program that issues tokens: $TASKAPI, or one that is built of this repository.
func taskapi(t *testing.T) func(args ...string) *exec.Cmd {
	t.Helper()
	program := os.Getenv("TASKAPI")
	if program == "" {
		program = filepath.Join(t.TempDir(), "taskapi")
		build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/taskapi")
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	dir := t.TempDir()
	return func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "TASKAPI_DATA_DIR="+dir)
		return cmd
	}
}

// output runs a command and returns its output.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := err.(*exec.ExitError); ok {
			t.Fatalf("%v: %v\n%s", cmd.Args[1:], err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// serveKeys serves the ring's public keys until the test ends, and returns the issuer's URL.
func serveKeys(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Error("keyring serve:", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, issuer, _ := strings.Cut(strings.TrimSpace(line), "issuer ")
	return issuer
}

// kind is a line of `taskapi token mint --all`.
type kind struct {
	Name, Wrong     string
	Strict, Foreign bool
	Token           *string
	TokenBytes      []byte
}

// TestService: the service accepts the tokens of a task that is to call it, refuses every kind of bad ones, and follows
// a rotation and a removal of keys.
func TestService(t *testing.T) {
	taskapi := taskapi(t)
	// A first allocation makes the key ring. The second one's tokens name where the keys are served: on a fixed port there
	// would be no first.
	output(t, taskapi("run", "ring.nomad.hcl"))
	issuer := serveKeys(t, taskapi("keyring", "serve", "--listen", "127.0.0.1:0"))
	output(t, taskapi("run", "--detach", "-o", "identity.issuer="+issuer, "caller.nomad.hcl"))
	defer func() { output(t, taskapi("stop", "--now")) }()
	mint := func(flags ...string) *exec.Cmd {
		return taskapi(append([]string{"token", "mint", "--audience", "greeter"}, flags...)...)
	}

	c := config("greeter")
	switch *wrong {
	case "expiry":
		c.SkipExpiryCheck = true
	case "audience":
		c.ClientID, c.SkipClientIDCheck = "", true
	case "issuer":
		c.SkipIssuerCheck = true
	}
	verify, err := newVerifier(context.Background(), issuer, c)
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(greet(verify))
	defer service.Close()
	call := func(token string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}

	old := output(t, mint())
	if got := call(old); got != http.StatusOK {
		t.Fatalf("a good token: %d", got)
	}
	refused := 0
	for line := range strings.Lines(output(t, mint("--all"))) {
		var k kind
		if err := json.Unmarshal([]byte(line), &k); err != nil {
			t.Fatal(err)
		}
		if k.Strict { // no harm comes from those that a library is lenient about: the issuer's key has signed each
			continue
		}
		token := string(k.TokenBytes)
		if k.Token != nil {
			token = *k.Token
		}
		if _, err := verify(t.Context(), token); err == nil {
			t.Errorf("%s is accepted: %s", k.Name, k.Wrong)
		}
		refused++
	}
	if refused < 100 {
		t.Errorf("%d kinds of bad tokens were tried", refused)
	}

	// A rotation: tokens of the new key are good at once, those of the old one until it is removed and the verifier asks
	// again.
	key := strings.Fields(strings.Split(output(t, taskapi("keyring", "list")), "\n")[1])[0]
	output(t, taskapi("keyring", "rotate"))
	if got := call(output(t, mint())); got != http.StatusOK {
		t.Errorf("a token of a new key: %d", got)
	}
	if got := call(old); got != http.StatusOK {
		t.Errorf("a token of the key before: %d", got)
	}
	output(t, taskapi("keyring", "remove", key))
	// A verifier keeps the keys that it knows: go-oidc fetches those that it does not.
	later, err := newVerifier(context.Background(), issuer, config("greeter"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := later(t.Context(), old); err == nil {
		t.Error("a token of a removed key is accepted by a service that was started since")
	}
}
