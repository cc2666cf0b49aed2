package start

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"taskapi/cmd/taskapi/internal/agent"
)

// TestGivenFlags go before what is remembered, and those that make a difference are named.
func TestGivenFlags(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	kept := agent.Settings{JWKS: []string{"https://a", "https://b"}, Policy: filepath.Join(here, "policy"), HostIP: "::1",
		IdentityTTL: 2 * time.Hour}
	for _, tc := range []struct {
		args   []string
		change func(*agent.Settings)
		differ []string
	}{
		{nil, func(*agent.Settings) {}, nil},
		{[]string{"--host-ip=::1", "--policy=policy", "--jwks=https://a", "--jwks=https://b"},
			func(s *agent.Settings) { s.Policy = "policy" }, nil},
		{[]string{"--policy="}, func(s *agent.Settings) { s.Policy = "" }, []string{"policy"}},
		{[]string{"--jwks=https://b", "--identity-ttl=1h"}, func(s *agent.Settings) {
			s.JWKS,
				s.IdentityTTL = []string{"https://b"}, 3600e9
		},
			[]string{"identity-ttl", "jwks"}},
		// the default, and yet another
		{[]string{"--host-ip=127.0.0.1"}, func(s *agent.Settings) { s.HostIP = "127.0.0.1" }, []string{"host-ip"}},
	} {
		var given agent.Settings
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		bindSettings(&given, flags)
		if err := flags.Parse(tc.args); err != nil {
			t.Fatal(err)
		}
		want := kept
		tc.change(&want)
		got, differ := WithFlags(kept, flags)
		if diff := cmp.Diff(want, got); diff != "" || !slices.Equal(differ, tc.differ) {
			t.Errorf("%q: %q differ, want %q; settings (-want +got):\n%s", tc.args, differ, tc.differ, diff)
		}
	}
	if kept.JWKS[1] != "https://b" {
		t.Errorf("what was remembered has been changed: %+v", kept)
	}
}
