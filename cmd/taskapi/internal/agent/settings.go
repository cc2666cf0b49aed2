package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"taskapi/allocrunner/artifacts"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/devices"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/vault"
	"taskapi/allocrunner/volumes"
	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/identity"
	"taskapi/identity/workload"
)

// defaultIdentityTTL is how long an identity without a ttl of its own is good: a year, which outlives most allocations.
const defaultIdentityTTL = 365 * 24 * time.Hour

// Settings say how an agent works, whatever the job.
type Settings struct {
	JWKS            []string
	Audiences       []string
	Issuer          string
	ExtraClaims     workload.ExtraClaims
	Policy          string   // a preset or a file; empty for the default
	Limits          []string // NAME=VALUE each
	AuditLog        string
	AuditRequired   bool
	AuditReads      bool
	HostIP          string
	IdentityTTL     time.Duration
	IsolateUsers    string // FROM-TO; empty for no isolation
	AllowSharedUser bool
	Unlimited       bool // resources are not limits
	Devices         []devices.Device
	Artifacts       artifacts.Settings
	SealKey         string // a file; empty for the one in the key ring
	Cluster         etcd.Settings
	MetricsListen   string
	HostVolumes     []volumes.Volume
	GC              datadir.GC // of taskapi agent

	Drivers *drivers.Registry // that tasks may use; nil for the built-in ones

	ConsulHere bool // services with the provider "consul" are registered here
	Consul     consul.Settings
	ConsulEnv  consul.Settings // the environment's, where Consul is empty
	Vault      vault.Settings
}

// LongestTTL returns how long a token may live.
func (s Settings) LongestTTL() time.Duration {
	return max(identity.DefaultMaxTTL, s.IdentityTTL+time.Minute)
}

// DefaultSettings returns the settings of a run without flags.
func DefaultSettings() Settings {
	return Settings{HostIP: "127.0.0.1", IdentityTTL: defaultIdentityTTL, Artifacts: artifacts.DefaultSettings(),
		GC: datadir.DefaultGC()}
}

// Audience returns the audiences of which a token must have one.
func (s Settings) Audience() []string {
	if len(s.Audiences) == 0 {
		return []string{identity.DefaultAudience}
	}
	return s.Audiences
}

// Check returns an error for values that don't go together, whatever the files have that they name.
func (s Settings) Check() error {
	if (s.AuditRequired || s.AuditReads) && s.AuditLog == "" {
		return invalid(errors.New("audit.required and audit.reads need audit.path"))
	}
	if err := s.checkServices(); err != nil {
		return invalid(err)
	}
	return nil
}

// OpenRights opens what the settings say about the callers of a socket, for a process that runs no allocation: their
// policy, nil for none, the limits, and the audit log, nil for none. Errors that are the caller's fault are
// InvalidError.
func (s Settings) OpenRights(logger *slog.Logger) (
	policy *auth.Policy, limits limitset.Set, audit *auth.AuditLog, err error,
) {
	if policy, err = s.OpenPolicy(); err != nil {
		return nil, limits, nil, err
	}
	if limits, err = limitsOf(s.Limits, policy); err != nil {
		return nil, limits, nil, err
	}
	audit, err = OpenAudit(s, logger)
	return policy, limits, audit, err
}

// TryFiles returns the error that an agent would get at its start from a file that the settings name. It creates the
// audit log, as an agent does.
func (s Settings) TryFiles() error {
	if err := s.TryReading(); err != nil {
		return err
	}
	f, err := OpenAudit(s, slog.New(slog.DiscardHandler))
	if err != nil || f == nil {
		return err
	}
	return f.Close()
}

// TryReading returns the error of the first file that the settings name and that can't be read or has a mistake. It
// changes nothing: of the audit log, only the directory is looked at.
func (s Settings) TryReading() error {
	if _, err := openIssuers(s.JWKS, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	policy, err := s.OpenPolicy()
	if err != nil {
		return err
	}
	if _, err := limitsOf(s.Limits, policy); err != nil {
		return err
	}
	if err := s.ConsulAgent().TryFiles(); err != nil {
		return invalid(err)
	}
	if err := s.Vault.TryFiles(); err != nil {
		return invalid(err)
	}
	if _, err := os.Stat(filepath.Dir(s.AuditLog)); err != nil {
		return invalid(fmt.Errorf("audit log %s: %w", s.AuditLog, UnwrapPath(err)))
	}
	return nil
}

// UnwrapPath returns the cause of an error about a path, for a message that already names the path.
func UnwrapPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
