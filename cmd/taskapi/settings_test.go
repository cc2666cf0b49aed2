package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// TestSettingsAreRemembered as they were, with paths that are good from anywhere.
func TestSettingsAreRemembered(t *testing.T) {
	dir := t.TempDir()
	if got, err := remembered(dir); err != nil || !cmp.Equal(got, defaultSettings()) {
		t.Errorf("without a file: %+v, %v; want the defaults", got, err)
	}
	want := settings{
		JWKS: []string{"/a/keys.json", "https://example.com/keys"}, Audiences: []string{"x"}, Issuer: "https://i", Policy: "/a/policy",
		AuditLog: "/a/audit", AuditRequired: true, HostIP: "::1", IdentityTTL: 3, SealKey: "/a/seal", IsolateUsers: "5-9", AllowSharedUser: true,
	}
	if err := want.remember(dir); err != nil {
		t.Fatal(err)
	}
	got, err := remembered(dir)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v; settings (-want +got):\n%s", err, diff)
	}
	relative := settings{Policy: "policy", JWKS: []string{"keys.json"}, HostIP: "::1", IdentityTTL: 3}
	if err := relative.remember(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := remembered(dir); err != nil || !filepath.IsAbs(got.Policy) || !filepath.IsAbs(got.JWKS[0]) || got.SealKey != "" {
		t.Errorf("got %+v, %v; want absolute paths", got, err)
	}
	for name, text := range map[string]string{"broken": "{", "senseless": `{"host_ip":"x","identity_ttl_ns":1}`} {
		mustWrite(t, filepath.Join(dir, settingsName), text)
		if _, err := remembered(dir); err == nil {
			t.Errorf("a %s file is taken for none", name)
		}
	}
}

// TestGivenFlags go before what is remembered, and those that make a difference are named.
func TestGivenFlags(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	kept := settings{JWKS: []string{"https://a", "https://b"}, Policy: filepath.Join(here, "policy"), HostIP: "::1", IdentityTTL: 3}
	for _, tc := range []struct {
		args   []string
		change func(*settings)
		differ []string
	}{
		{nil, func(*settings) {}, nil},
		{[]string{"--host-ip=::1", "--policy=policy", "--jwks=https://a", "--jwks=https://b"}, func(s *settings) { s.Policy = "policy" }, nil},
		{[]string{"--policy="}, func(s *settings) { s.Policy = "" }, []string{"policy"}},
		{[]string{"--jwks=https://b", "--identity-ttl=1h"}, func(s *settings) { s.JWKS, s.IdentityTTL = []string{"https://b"}, 3600e9 },
			[]string{"identity-ttl", "jwks"}},
		{[]string{"--host-ip=127.0.0.1"}, func(s *settings) { s.HostIP = "127.0.0.1" }, []string{"host-ip"}}, // the default, and yet another
	} {
		var given settings
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		given.bind(flags)
		if err := flags.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		want := kept
		tc.change(&want)
		got, differ := kept.with(flags)
		if diff := cmp.Diff(want, got); diff != "" || !slices.Equal(differ, tc.differ) {
			t.Errorf("%q: %q differ, want %q; settings (-want +got):\n%s", tc.args, differ, tc.differ, diff)
		}
	}
	if kept.JWKS[1] != "https://b" {
		t.Errorf("what was remembered has been changed: %+v", kept)
	}
}
