package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster/fleet"
	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers"
	"taskapi/identity"
	"taskapi/identity/opaque"
	"taskapi/socket"
)

// newAuthenticator returns the authenticator for the requests on all sockets. auditor may be nil.
func (s *wiring) newAuthenticator(alloc *api.Allocation, auditor auth.Auditor) (*auth.Authenticator, error) {
	verifier, err := s.cfg.Settings.newVerifier(s.keyring, s.issuers)
	if err != nil {
		return nil, fmt.Errorf("verification of tokens: %w", err)
	}
	keys := []identity.KeySource{s.keyring}
	for _, i := range s.issuers {
		keys = append(keys, i.Keys)
	}
	config := auth.Config{
		Verifier: verifier,
		Allocations: OnlyAllocation{alloc.ID, &auth.Allocation{
			Region: *alloc.Job.Region, Namespace: alloc.Namespace, JobID: interfaces.IdentityJobID(alloc),
			TaskGroup: alloc.TaskGroup, Life: s.life,
		}, s.runner.Terminal},
		Logger:   s.logger,
		Policy:   s.policy,
		Limits:   auth.Limits{Set: s.limits},
		Keys:     keys,
		Auditor:  auditor,
		Refusals: s.cfg.Refusals,
		OperatorSecret: func(secret string) (token string, known bool) {
			token, err := opaque.Token(s.cfg.Dir.OperatorSecrets(s.cfg.ID), secret)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				s.logger.Warn("a secret of the operator's can't be used", "error", err)
			}
			return token, err == nil
		},
	}
	if s.revocations != nil {
		config.Revocations = s.revocations
	}
	return auth.NewAuthenticator(config)
}

// newVerifier returns the verifier of the tokens of the key ring and of other issuers.
func (s Settings) newVerifier(ring identity.KeySource, issuers []issuer) (*identity.Verifier, error) {
	config := identity.VerifierConfig{Local: ring, Audiences: s.Audience(), MaxTTL: s.LongestTTL()}
	for _, i := range issuers {
		config.Foreign = append(config.Foreign, i.Issuer)
	}
	return identity.NewVerifier(config)
}

// openAPI makes the authenticator and the API behind it.
func (s *wiring) openAPI(alloc *api.Allocation) (err error) {
	s.warnOfIdleRules(alloc)
	if s.audit, err = OpenAudit(s.cfg.Settings, s.logger); err != nil {
		return err
	}
	auditor := AuditorOf(s.audit)
	authenticator, err := s.newAuthenticator(alloc, auditor)
	if err != nil {
		return err
	}
	versions := &s.agent.versions
	versions.follow(s.runner, s.agent.present().text)
	s.authStats = authenticator.Stats
	config := handlers.Config{
		Server: handlers.Server{
			Authenticator: authenticator,
			Allocs:        &allocAdapter{s.runner, s},
			PeerOf:        PeerOf,
			Limits:        s.limits,
			Logger:        s.logger,
			Auditor:       auditor,
			AuditReads:    s.cfg.Settings.AuditReads,
			Answered:      s.audience.answered,
			Refusals:      s.cfg.Refusals,
		},
		Node: handlers.Node{
			Agent:   s.nodeAgent(alloc),
			Machine: newMachine(s.cfg.Dir.Alloc(s.cfg.ID), s.cfg.Cluster, s.cfg.Settings),
			Metrics: s.measure,
			Host:    s.host.Stats,
			Log:     s.log,
			JWKS:    func() ([]byte, error) { return s.keyring.JWKS(), nil },
		},
		SigningKeyID: func() string { return s.keyring.Active().ID },
		Events:       s.events,
		Services:     s.registry,
		Jobs: registrar{
			runner: s.runner, agent: s.agent, settings: s.cfg.Settings, allocs: s.cfg.Dir.Allocs(),
			events: s.cfg.Events, history: versions,
		},
		History: versions,
		Parser:  parser{settings: s.cfg.Settings, allocs: s.cfg.Dir.Allocs()},
	}
	if s.cfg.Cluster != nil {
		kept, err := OpenVariables(s.cfg.Cluster, s.keyring)
		if err != nil {
			return err
		}
		s.variables, config.Variables = kept, kept
		config.TaskVariables = func(namespace, job string) handlers.Variables { return kept.OfTask(namespace, job) }
	}
	if s.cfg.Clustered {
		all := fleet.New(s.cfg.Cluster)
		config.Fleet, config.Elsewhere = all, elsewhere(all)
	}
	if s.faults != nil {
		config.Fault = s.faults.Next
	}
	if s.cfg.Settings.Issuer != "" {
		config.OpenIDConfiguration = func() ([]byte, error) { return OpenIDConfiguration(s.cfg.Settings.Issuer), nil }
	}
	s.api = handlers.New(config)
	return nil
}

// warnOfIdleRules names the rules of the policy that match no task of this allocation, because a misspelt name would go
// unnoticed.
func (s *wiring) warnOfIdleRules(alloc *api.Allocation) {
	var tasks []string
	for _, task := range alloc.GetTaskGroup().Tasks {
		tasks = append(tasks, task.Name)
	}
	for _, rule := range s.policy.Idle(alloc.Namespace, tasks) {
		s.logger.Warn("a rule of the policy decides nothing for this allocation: is its name misspelt?",
			"policy", s.cfg.Settings.Policy, "rule", rule)
	}
}

// OpenPolicy returns the policy, a preset or a file's; nil for the default one. Errors: the file's.
func (s Settings) OpenPolicy() (*auth.Policy, error) {
	path := s.Policy
	if path == "" {
		return nil, nil
	}
	if policy, ok := auth.Preset(path); ok {
		return policy, nil
	}
	err := checkTrusted(path)
	var src []byte
	if err == nil {
		src, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, invalid(fmt.Errorf("policy %s: %w; give a file, or one of the presets local and nomad",
			path, UnwrapPath(err)))
	}
	policy, err := auth.ParsePolicy(path, src)
	return policy, invalid(err)
}

// otherFiles is how many files an agent has open beside connections, with some room.
const otherFiles = 512

// limitsOf returns the limits: the defaults, changed by the policy file and then by the settings.
func limitsOf(all []string, policy *auth.Policy) (limitset.Set, error) {
	set, err := policy.Limits(limitset.Default()).With(strings.Join(all, ","))
	if err == nil {
		err = set.Check()
	}
	var files unix.Rlimit // Go has raised the process's limit to the highest that it may have
	if err == nil && set.AllConnections > limitset.Default().AllConnections &&
		unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && uint64(set.AllConnections+otherFiles) > files.Max {
		err = fmt.Errorf("all_connections=%d, but this process may open %d files, and needs %d others: raise ulimit -n",
			set.AllConnections, files.Max, otherFiles)
	}
	if err != nil {
		return limitset.Set{}, invalid(fmt.Errorf("limits: %w", err))
	}
	return set, nil
}

// OnlyAllocation tells an authenticator whether the only allocation of a process lives.
type OnlyAllocation struct {
	ID    string
	Alloc *auth.Allocation // as its tokens describe it; an update in place does not change that. Nil when unknown
	Ended func() bool      // nil for an allocation that lives as long as the process
}

// Lookup returns the allocation, if the ID is its own, and whether it has ended.
func (o OnlyAllocation) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	switch {
	case id != o.ID || o.Alloc == nil:
		return nil, auth.Unknown
	case o.Ended != nil && o.Ended():
		return o.Alloc, auth.Terminal
	}
	return o.Alloc, auth.Live
}

// PeerOf returns the process at the other end of a connection to a Unix socket: its credentials as they were when the
// connection was accepted.
func PeerOf(c net.Conn) (auth.Peer, error) {
	conn, ok := c.(*socket.Conn)
	if !ok {
		return auth.Peer{}, fmt.Errorf("connection of type %T has no peer credentials", c)
	}
	return conn.Peer(), nil
}
