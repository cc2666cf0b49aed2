package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskapi/allocrunner/consul"
)

// TestSettingsAreRemembered as they were, with paths that are good from anywhere.
func TestSettingsAreRemembered(t *testing.T) {
	dir := t.TempDir()
	if got, err := Remembered(dir); err != nil || !cmp.Equal(got, DefaultSettings()) {
		t.Errorf("without a file: %+v, %v; want the defaults", got, err)
	}
	want := Settings{
		JWKS: []string{"/a/keys.json", "https://example.com/keys"}, Audiences: []string{"x"},
		Issuer: "https://i", Policy: "/a/policy",
		AuditLog: "/a/audit", AuditRequired: true, HostIP: "::1", IdentityTTL: time.Hour, SealKey: "/a/seal",
		IsolateUsers: "5-9", AllowSharedUser: true,
		Limits: "streams=2,waits=3", MetricsListen: "127.0.0.1:9100", Services: ServicesHere,
		Consul:    consul.Settings{Address: "h:1", TokenFile: "/a/token"},
		ConsulEnv: consul.Settings{Address: "unix:///a", CAFile: "/a/ca", SkipVerify: true},
	}
	if err := want.Save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := Remembered(dir)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v; settings (-want +got):\n%s", err, diff)
	}
	relative := Settings{Policy: "policy", JWKS: []string{"keys.json"}, HostIP: "::1", IdentityTTL: time.Hour}
	if err := relative.Save(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := Remembered(dir); err != nil || !filepath.IsAbs(got.Policy) || !filepath.IsAbs(got.JWKS[0]) ||
		got.SealKey != "" {
		t.Errorf("got %+v, %v; want absolute paths", got, err)
	}
	for name, text := range map[string]string{"broken": "{", "senseless": `{"host_ip":"x","identity_ttl_ns":1}`} {
		if err := os.WriteFile(filepath.Join(dir, settingsName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Remembered(dir); err == nil {
			t.Errorf("a %s file is taken for none", name)
		}
	}
}
