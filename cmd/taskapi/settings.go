package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/identity"
	"taskapi/identity/privatefile"
)

// defaultIdentityTTL is how long an identity without a ttl of its own is good: a year, which outlives most allocations.
const defaultIdentityTTL = 365 * 24 * time.Hour

// settingsName is the file in an allocation's directory that keeps its settings.
const settingsName = "settings.json"

// maxSettings is more than the flags of any command line.
const maxSettings = 4 << 20

// settings say how a sidecar does its work, whatever the job. They are flags of run, and outlive it in a file: whoever goes on with the
// allocation must not open a door that --policy had closed.
type settings struct {
	JWKS            []string      `json:"jwks,omitempty"`
	Audiences       []string      `json:"audience,omitempty"`
	Issuer          string        `json:"issuer,omitempty"`
	Policy          string        `json:"policy,omitempty"`
	AuditLog        string        `json:"audit_log,omitempty"`
	AuditRequired   bool          `json:"audit_required,omitempty"`
	HostIP          string        `json:"host_ip"`
	IdentityTTL     time.Duration `json:"identity_ttl_ns"`
	IsolateUsers    string        `json:"isolate_users,omitempty"`
	AllowSharedUser bool          `json:"allow_shared_user,omitempty"`
	SealKey         string        `json:"seal_key,omitempty"`
}

func defaultSettings() settings {
	return settings{HostIP: "127.0.0.1", IdentityTTL: defaultIdentityTTL}
}

// bind makes flags that set s. Their defaults are what it has.
func (s *settings) bind(f *pflag.FlagSet) {
	f.StringArrayVar(&s.JWKS, "jwks", s.JWKS, "JWK set, `SOURCE[,iss=ISSUER][,aud=AUDIENCE]`, a file or URL, of another issuer whose identities are trusted; may be repeated")
	f.StringArrayVar(&s.Audiences, "audience", s.Audiences,
		"audience that a token must name, and that identities without an aud are issued for (default "+identity.DefaultAudience+"); may be repeated")
	f.StringVar(&s.Issuer, "issuer", s.Issuer, "issuer (iss) of new identities, a URL")
	f.StringVar(&s.Policy, "policy", s.Policy, "file that says what each task may do")
	f.StringVar(&s.AuditLog, "audit-log", s.AuditLog, "file that gets a JSON line for each refusal and each change; SIGHUP reopens it")
	f.BoolVar(&s.AuditRequired, "audit-required", s.AuditRequired, "refuse changes that the audit log can't record")
	f.StringVar(&s.HostIP, "host-ip", s.HostIP, "address on which the group's ports are taken")
	f.DurationVar(&s.IdentityTTL, "identity-ttl", s.IdentityTTL, "life of an identity that names no ttl")
	f.StringVar(&s.IsolateUsers, isolateFlag, s.IsolateUsers,
		"as root, run each task that has no user as a user of its own, with a number from `FROM-TO` ("+formatIDRange(allocrunner.DefaultIDRange)+" when none are given)")
	f.Lookup(isolateFlag).NoOptDefVal = formatIDRange(allocrunner.DefaultIDRange)
	f.BoolVar(&s.AllowSharedUser, "allow-shared-user", s.AllowSharedUser, "accept a --policy although tasks run as taskapi's own user and can get around it")
	f.StringVar(&s.SealKey, "seal-key", s.SealKey, sealKeyUsage)
}

// with is the settings with the flags that were given in place of what they had, and the names of those flags that make a difference.
func (s settings) with(flags *pflag.FlagSet) (settings, []string) {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.JWKS, s.Audiences = slices.Clone(s.JWKS), slices.Clone(s.Audiences)
	s.bind(own)
	var differ []string
	flags.Visit(func(given *pflag.Flag) {
		f := own.Lookup(given.Name)
		if f == nil {
			return
		}
		before := s.absolute()
		if list, ok := given.Value.(pflag.SliceValue); ok {
			_ = f.Value.(pflag.SliceValue).Replace(list.GetSlice()) // the same flag has taken it already, as below
		} else {
			_ = f.Value.Set(given.Value.String())
		}
		if !reflect.DeepEqual(before, s.absolute()) {
			differ = append(differ, given.Name)
		}
	})
	return s, differ
}

// audience is whom this API's tokens are for.
func (s settings) audience() []string {
	if len(s.Audiences) == 0 {
		return []string{identity.DefaultAudience}
	}
	return s.Audiences
}

// check refuses values that no file has to be read for.
func (s settings) check() error {
	if _, err := netip.ParseAddr(s.HostIP); err != nil {
		return usage(fmt.Errorf("--host-ip %q is no IP address: give one of this machine, such as 127.0.0.1 or ::1", s.HostIP))
	}
	if s.IdentityTTL <= 0 {
		return usage(fmt.Errorf("--identity-ttl is %v: give a positive duration, such as 24h", s.IdentityTTL))
	}
	if s.AuditRequired && s.AuditLog == "" {
		return usage(errors.New("--audit-required needs --audit-log FILE"))
	}
	if _, err := s.idRange(); err != nil {
		return usage(err)
	}
	return checkIssuer("--issuer", s.Issuer)
}

// absolute is the settings with paths that are good from anywhere.
func (s settings) absolute() settings {
	s.Policy, s.AuditLog, s.SealKey = absolute(s.Policy), absolute(s.AuditLog), absolute(s.SealKey)
	s.JWKS = slices.Clone(s.JWKS)
	for i, place := range s.JWKS {
		if source, options := cutOptions(place); !isURL(source) {
			s.JWKS[i] = absolute(source) + options
		}
	}
	return s
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

// remember writes the settings into an allocation's directory.
func (s settings) remember(dir string) error {
	encoded, err := json.MarshalIndent(s.absolute(), "", "  ")
	if err == nil {
		err = privatefile.Write(filepath.Join(dir, settingsName), append(encoded, '\n'))
	}
	if err != nil {
		return fmt.Errorf("allocation directory %s: %w", dir, err)
	}
	return nil
}

// remembered are the settings with which an allocation was last run, or the defaults when there is no trace of it.
func remembered(dir string) (settings, error) {
	kept := defaultSettings()
	path := filepath.Join(dir, settingsName)
	if _, err := trusted(dir); err != nil {
		return kept, err
	}
	encoded, _, err := privatefile.Read(path, maxSettings)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return kept, nil
	}
	if err == nil {
		err = json.Unmarshal(encoded, &kept)
	}
	if err == nil {
		err = kept.check()
	}
	if err != nil {
		return defaultSettings(), fmt.Errorf("%s, the flags of the last run, can't be read: %w; remove it, and give 'taskapi run' all flags anew", path, unwrapPath(err))
	}
	return kept, nil
}
