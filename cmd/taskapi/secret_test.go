package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/polltest"
)

// TestOperatorSecret: what 'token mint --operator --opaque' prints is the operator's on operator.sock and on no other,
// and is refused once it is revoked. It is not on the disk.
func TestOperatorSecret(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	r := startRun(t, dir, testJob)
	r.operator()
	mint := func(want int, args ...string) string {
		t.Helper()
		var out, errs polltest.Log
		args = append([]string{"token", "mint", "--data-dir", dir}, args...)
		if code := cli.Run(t.Context(), args, testEnvironment(&out, &errs)); code != want {
			t.Fatalf("%q: exit code %d\n%s", args, code, errs.String())
		}
		return strings.TrimSuffix(out.String(), "\n") + errs.String()
	}
	secret := mint(base.ExitOK, "--operator", "--opaque", "--ttl", "2h")
	operator := r.client(r.layout.OperatorSocket(testAllocID), secret)
	self, _, err := operator.ACLTokens().Self(nil)
	if err != nil || self.Type != "management" || self.AccessorID == "" ||
		self.ExpirationTime.Sub(self.CreateTime).Hours() != 2 {
		t.Errorf("self = %+v, %v", self, err)
	}
	if _, _, err := operator.Nodes().List(nil); err != nil {
		t.Errorf("nodes: %v", err)
	}
	denied := func(what string, client *api.Client) {
		t.Helper()
		if _, err := client.Agent().Health(); err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("%s: %v, want 403", what, err)
		}
	}
	denied("on a task's socket", r.client(r.allocDir("server", "secrets", "api.sock"), secret))
	denied("in upper case", r.client(r.layout.OperatorSocket(testAllocID), strings.ToUpper(secret)))
	_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, _ error) error {
		if content, err := os.ReadFile(path); entry.Type().IsRegular() && err == nil &&
			strings.Contains(string(content), secret) {
			t.Errorf("%s holds the secret", path)
		}
		return nil
	})

	file := writeFile(t, filepath.Join(t.TempDir(), "secret"), secret+"\n")
	var out polltest.Log
	explain := []string{"token", "explain", "--data-dir", dir, file}
	if code := cli.Run(t.Context(), explain, testEnvironment(&out, &out)); code != base.ExitOK ||
		!strings.HasSuffix(out.String(), "accepted\n") {
		t.Errorf("token explain: exit code %d\n%s", code, out.String())
	}
	revoke := []string{"token", "revoke", "--data-dir", dir, file}
	if code := cli.Run(t.Context(), revoke, testEnvironment(&out, &out)); code != base.ExitOK {
		t.Fatalf("token revoke: exit code %d\n%s", code, out.String())
	}
	denied("revoked", operator)
	denied("revoked, on a new connection", r.client(r.layout.OperatorSocket(testAllocID), secret))

	for _, wrong := range [][]string{{"--opaque"}, {"--operator", "--task", "server"}, {"--operator", "--bad", "expired"},
		{"--operator", "--all"}} {
		if got := mint(base.ExitUsage, wrong...); !strings.Contains(got, "--operator") {
			t.Errorf("%q: %s", wrong, got)
		}
	}
	if got := mint(base.ExitUsage, "--operator", "--opaque", "--ttl", "1000000h"); !strings.Contains(got,
		"would refuse the token") {
		t.Errorf("a secret that lives too long: %s", got)
	}
	jwt := mint(base.ExitOK, "--operator")
	if _, err := r.client(r.layout.OperatorSocket(testAllocID), jwt).Agent().Health(); err != nil {
		t.Errorf("the token itself: %v", err)
	}
}
