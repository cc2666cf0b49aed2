package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// defaultIdentityTTL is how long an identity without a ttl of its own is good: a year, which outlives most allocations.
const defaultIdentityTTL = 365 * 24 * time.Hour

// settingsName is the file in an allocation's directory that remembers how its sidecar was told to work, for one that takes the
// allocation over without a command line of its own: 'taskapi stop' must not open a door that --policy had closed.
const settingsName = "settings.json"

// sideFlags say how a sidecar does its work, whatever the job.
type sideFlags struct {
	jwks        []string
	audiences   []string
	issuer      string
	policy      string
	auditLog    string
	hostIP      string
	identityTTL time.Duration
}

func (s *sideFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&s.jwks, "jwks", nil, "JWK set, a file or URL, of another issuer whose identities are trusted; may be repeated")
	f.StringArrayVar(&s.audiences, "audience", nil, "audience that a token must name (default nomadproject.io); may be repeated")
	f.StringVar(&s.issuer, "issuer", "", "issuer (iss) of new identities, a URL")
	f.StringVar(&s.policy, "policy", "", "file that says what each task may do")
	f.StringVar(&s.auditLog, "audit-log", "", "file that gets a JSON line for each refusal and each change")
	f.StringVar(&s.hostIP, "host-ip", "127.0.0.1", "address on which the group's ports are taken")
	f.DurationVar(&s.identityTTL, "identity-ttl", defaultIdentityTTL, "life of an identity that names no ttl")
}

// check refuses values that no file has to be read for.
func (s *sideFlags) check() error {
	if _, err := netip.ParseAddr(s.hostIP); err != nil {
		return usage(fmt.Errorf("--host-ip %q is no IP address: give one of this machine, such as 127.0.0.1 or ::1", s.hostIP))
	}
	if s.identityTTL <= 0 {
		return usage(fmt.Errorf("--identity-ttl is %v: give a positive duration, such as 24h", s.identityTTL))
	}
	return nil
}

// settings are the flags as they are remembered. Paths are absolute.
type settings struct {
	JWKS        []string      `json:"jwks,omitempty"`
	Audiences   []string      `json:"audience,omitempty"`
	Issuer      string        `json:"issuer,omitempty"`
	Policy      string        `json:"policy,omitempty"`
	AuditLog    string        `json:"audit_log,omitempty"`
	HostIP      string        `json:"host_ip"`
	IdentityTTL time.Duration `json:"identity_ttl_ns"`
	SealKey     string        `json:"seal_key,omitempty"`
}

// remember writes the flags into an allocation's directory.
func (s *sideFlags) remember(dir, sealKey string) error {
	keep := settings{Audiences: s.audiences, Issuer: s.issuer, Policy: absolute(s.policy), AuditLog: absolute(s.auditLog),
		HostIP: s.hostIP, IdentityTTL: s.identityTTL, SealKey: absolute(sealKey)}
	for _, place := range s.jwks {
		if !strings.Contains(place, "://") {
			place = absolute(place)
		}
		keep.JWKS = append(keep.JWKS, place)
	}
	encoded, err := json.MarshalIndent(keep, "", "  ")
	if err == nil {
		err = replaceFile(filepath.Join(dir, settingsName), append(encoded, '\n'))
	}
	if err != nil {
		return fmt.Errorf("allocation directory %s: %w", dir, err)
	}
	return nil
}

// absolute is the path from wherever it is read; empty stays empty.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if whole, err := filepath.Abs(path); err == nil {
		return whole
	}
	return path
}

// remembered are the flags with which an allocation was last run, or the defaults when there is no trace of it.
func remembered(dir string) (runOptions, error) {
	opts := runOptions{sideFlags: sideFlags{hostIP: "127.0.0.1", identityTTL: defaultIdentityTTL}}
	path := filepath.Join(dir, settingsName)
	encoded, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return opts, nil
	}
	var kept settings
	if err == nil {
		err = json.Unmarshal(encoded, &kept)
	}
	if err != nil {
		return runOptions{}, fmt.Errorf("%s, the flags of the last run, can't be read: %w; 'taskapi run --alloc-id' with the job file takes others", path, err)
	}
	opts.sideFlags = sideFlags{kept.JWKS, kept.Audiences, kept.Issuer, kept.Policy, kept.AuditLog, kept.HostIP, kept.IdentityTTL}
	opts.sealKey = kept.SealKey
	return opts, opts.check()
}
