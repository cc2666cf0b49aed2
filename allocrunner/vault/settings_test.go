package vault_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/vault"
	"taskapi/internal/must"
)

// TestSettings: settings that can't be meant are refused in words that say what would be right.
func TestSettings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		settings vault.Settings
		want     string
	}{
		{vault.Settings{}, ""},
		{vault.Settings{Address: "https://vault.example:8200"}, ""},
		{vault.Settings{Address: "http://[::1]:8200/prefix", TokenFile: "x", Namespace: "n"}, ""},
		{vault.Settings{Role: "r"}, "set vault.address"},
		{vault.Settings{Address: "127.0.0.1:8200"}, "must be a URL"},
		{vault.Settings{Address: "https://u:p@vault:8200"}, "no password"},
		{vault.Settings{Address: "http://v", TokenFile: "x", Role: "r"}, "vault.token_file excludes vault.role"},
	} {
		err := tc.settings.Check()
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) ||
			strings.Contains(err.Error(), "u:p")) {
			t.Errorf("%+v: %v, want %q", tc.settings, err, tc.want)
		}
	}
}

// TestTryFiles reads the files.
func TestTryFiles(t *testing.T) {
	t.Parallel()
	file := func(content string) string {
		path := filepath.Join(t.TempDir(), "f")
		must.OK(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	for _, tc := range []struct {
		token, ca, want string
	}{
		{token: file("hvs.x\n")},
		{token: "/none", want: "the token for Vault: open /none: no such file"},
		{token: file("a\nb"), want: "must have one line, which is a token"},
		{token: file(""), want: "must have one line, which is a token"},
		{ca: file("no certificate"), want: "has no certificate in PEM"},
		{ca: "/none", want: "the certificates for Vault: open /none: no such file"},
	} {
		err := vault.Settings{Address: "https://v", TokenFile: tc.token, CAFile: tc.ca}.TryFiles()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc, err, tc.want)
		}
	}
}
