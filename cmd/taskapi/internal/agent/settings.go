package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/drivers"
	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/identity"
	"taskapi/internal/privatefile"
)

// defaultIdentityTTL is how long an identity without a ttl of its own is good: a year, which outlives most allocations.
const defaultIdentityTTL = 365 * 24 * time.Hour

// minIdentityTTL is the least life of an identity: claims count seconds, and a renewal takes time.
const minIdentityTTL = time.Second

// settingsName is the file in an allocation's directory that keeps its settings.
const settingsName = "settings.json"

// maxSettings is more bytes than a command line can have.
const maxSettings = 4 << 20

// Settings say how an agent works, whatever the job. They are flags of run, and are saved in a file: an agent that
// resumes the allocation must not allow what --policy has forbidden.
type Settings struct {
	JWKS            []string      `json:"jwks,omitempty"`
	Audiences       []string      `json:"audience,omitempty"`
	Issuer          string        `json:"issuer,omitempty"`
	Policy          string        `json:"policy,omitempty"`
	Limits          string        `json:"limits,omitempty"`
	AuditLog        string        `json:"audit_log,omitempty"`
	AuditRequired   bool          `json:"audit_required,omitempty"`
	HostIP          string        `json:"host_ip"`
	IdentityTTL     time.Duration `json:"identity_ttl_ns"`
	IsolateUsers    string        `json:"isolate_users,omitempty"`
	AllowSharedUser bool          `json:"allow_shared_user,omitempty"`
	SealKey         string        `json:"seal_key,omitempty"`
	MetricsListen   string        `json:"metrics_listen,omitempty"`

	Drivers *drivers.Registry `json:"-"` // that tasks may use; nil for the built-in ones

	Services  string          `json:"services,omitempty"` // ServicesHere or empty
	Consul    consul.Settings `json:"consul,omitzero"`    // the flags
	ConsulEnv consul.Settings `json:"consul_env,omitzero"`
}

// ServicesHere makes services with the provider "consul" services of the provider "nomad".
const ServicesHere = "nomad"

// ServicesFlag is the flag of Services.
const ServicesFlag = "services"

// longestTTL returns how long a token may live.
func (s Settings) longestTTL() time.Duration {
	return max(identity.DefaultMaxTTL, s.IdentityTTL+time.Minute)
}

// DefaultSettings returns the settings of a run without flags.
func DefaultSettings() Settings {
	return Settings{HostIP: "127.0.0.1", IdentityTTL: defaultIdentityTTL}
}

// Audience returns the audiences of which a token must have one.
func (s Settings) Audience() []string {
	if len(s.Audiences) == 0 {
		return []string{identity.DefaultAudience}
	}
	return s.Audiences
}

// Check returns an error for values that are wrong, whatever the files have that they name.
func (s Settings) Check() error {
	if _, err := netip.ParseAddr(s.HostIP); err != nil {
		return invalid(fmt.Errorf("--host-ip %q is no IP address: give one of this machine, such as 127.0.0.1 or ::1",
			s.HostIP))
	}
	if s.IdentityTTL < minIdentityTTL {
		return invalid(fmt.Errorf("--identity-ttl is %v: give at least %v, such as 24h", s.IdentityTTL, minIdentityTTL))
	}
	if s.MetricsListen != "" {
		if _, err := metricsAddress(s.MetricsListen); err != nil {
			return err
		}
	}
	if _, err := limitset.Default().With(s.Limits); err != nil { // limitsOf checks the rest
		return invalid(fmt.Errorf("--limits: %w", err))
	}
	if s.AuditRequired && s.AuditLog == "" {
		return invalid(errors.New("--audit-required needs --audit-log FILE"))
	}
	if _, err := s.idRange(); err != nil {
		return invalid(err)
	}
	if err := s.checkServices(); err != nil {
		return invalid(err)
	}
	return CheckIssuer("--issuer", s.Issuer)
}

// Absolute returns the settings with absolute paths.
func (s Settings) Absolute() Settings {
	s.AuditLog, s.SealKey = absolute(s.AuditLog), absolute(s.SealKey)
	if _, preset := auth.Preset(s.Policy); !preset { // a preset is no path; a file of that name is given as ./nomad
		s.Policy = absolute(s.Policy)
	}
	s.Consul, s.ConsulEnv = s.Consul.Absolute(), s.ConsulEnv.Absolute()
	s.JWKS = slices.Clone(s.JWKS)
	for i, place := range s.JWKS {
		if source, options := cutOptions(place); !isURL(source) {
			s.JWKS[i] = absolute(source) + options
		}
	}
	return s
}

// absolute returns the absolute path; empty stays empty.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if whole, err := filepath.Abs(path); err == nil {
		return whole
	}
	return path
}

// Save writes the settings into an allocation's directory, unless they are there.
func (s Settings) Save(dir string) error {
	path := filepath.Join(dir, settingsName)
	encoded, err := json.MarshalIndent(s.Absolute(), "", "  ")
	encoded = append(encoded, '\n')
	if had, _, failed := privatefile.Read(path, maxSettings); failed == nil && bytes.Equal(had, encoded) {
		return nil // they are on the disk already
	}
	if err == nil {
		err = privatefile.Write(path, encoded)
	}
	if err != nil {
		return fmt.Errorf("allocation directory %s: %w", dir, err)
	}
	return nil
}

// Remembered returns the settings with which the allocation of a directory last ran, or the defaults if it never did.
func Remembered(dir string) (Settings, error) {
	kept := DefaultSettings()
	path := filepath.Join(dir, settingsName)
	encoded, _, err := privatefile.Read(path, maxSettings)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return kept, nil
	}
	if err == nil {
		err = json.Unmarshal(encoded, &kept)
	}
	if err == nil {
		err = kept.Check()
	}
	if err != nil {
		return DefaultSettings(), fmt.Errorf("%s, the flags of the last run, can't be read: %w; remove it, and give all "+
			"flags again", path, UnwrapPath(err))
	}
	return kept, nil
}

// TryFiles returns the error that an agent would get at its start from a file that the settings name.
func (s Settings) TryFiles() error {
	discard := slog.New(slog.DiscardHandler)
	if _, err := openIssuers(s.JWKS, discard); err != nil {
		return err
	}
	policy, err := openPolicy(s.Policy)
	if err != nil {
		return err
	}
	if _, err := limitsOf(s.Limits, policy); err != nil {
		return err
	}
	if err := s.ConsulAgent().TryFiles(); err != nil {
		return invalid(err)
	}
	f, err := openAudit(s, discard)
	if err != nil || f == nil {
		return err
	}
	return f.Close()
}

// UnwrapPath returns the cause of an error about a path, for a message that already names the path.
func UnwrapPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
