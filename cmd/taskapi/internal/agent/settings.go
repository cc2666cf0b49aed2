package agent

import (
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

// maxSettings is more than the flags of any command line.
const maxSettings = 4 << 20

// Settings say how an agent works, whatever the job. They are flags of run, and outlive it in a file: what resumes the
// allocation must not allow what --policy had forbidden.
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

	Drivers *drivers.Registry `json:"-"` // that tasks may have; nil for those that are built in

	Services  string          `json:"services,omitempty"` // ServicesHere or nothing
	Consul    consul.Settings `json:"consul,omitzero"`    // the flags
	ConsulEnv consul.Settings `json:"consul_env,omitzero"`
}

// ServicesHere has the services that are for Consul served as those of provider "nomad".
const ServicesHere = "nomad"

// ServicesFlag is the flag of Services.
const ServicesFlag = "services"

// longestTTL returns how far ahead the exp of a token may lie.
func (s Settings) longestTTL() time.Duration {
	return max(identity.DefaultMaxTTL, s.IdentityTTL+time.Minute)
}

// DefaultSettings returns those of an allocation that is run without a flag.
func DefaultSettings() Settings {
	return Settings{HostIP: "127.0.0.1", IdentityTTL: defaultIdentityTTL}
}

// audience returns the audience of this API's tokens.
func (s Settings) audience() []string {
	if len(s.Audiences) == 0 {
		return []string{identity.DefaultAudience}
	}
	return s.Audiences
}

// Check refuses values that no file has to be read for.
func (s Settings) Check() error {
	if _, err := netip.ParseAddr(s.HostIP); err != nil {
		return invalid(fmt.Errorf("--host-ip %q is no IP address: give one of this machine, such as 127.0.0.1 or ::1", s.HostIP))
	}
	if s.IdentityTTL < minIdentityTTL {
		return invalid(fmt.Errorf("--identity-ttl is %v: give at least %v, such as 24h", s.IdentityTTL, minIdentityTTL))
	}
	if s.MetricsListen != "" {
		if _, err := metricsAddress(s.MetricsListen); err != nil {
			return err
		}
	}
	if _, err := limitset.Default().With(s.Limits); err != nil { // whether they go together is seen with the policy file
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

// Absolute returns the settings with paths that are good from anywhere.
func (s Settings) Absolute() Settings {
	s.AuditLog, s.SealKey = absolute(s.AuditLog), absolute(s.SealKey)
	if _, preset := auth.Preset(s.Policy); !preset { // which has no path; a file of that name is given as ./nomad
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

// Save writes the settings into an allocation's directory.
func (s Settings) Save(dir string) error {
	encoded, err := json.MarshalIndent(s.Absolute(), "", "  ")
	if err == nil {
		err = privatefile.Write(filepath.Join(dir, settingsName), append(encoded, '\n'))
	}
	if err != nil {
		return fmt.Errorf("allocation directory %s: %w", dir, err)
	}
	return nil
}

// Remembered returns the settings with which an allocation was last run, or the defaults when there is no trace of it.
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
		return DefaultSettings(), fmt.Errorf("%s, the flags of the last run, can't be read: %w; remove it, and give all flags again", path, UnwrapPath(err))
	}
	return kept, nil
}

// TryFiles opens every file that the settings name, as an agent does at its start, and closes it again.
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

// UnwrapPath returns an error without the path that a message already names.
func UnwrapPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
