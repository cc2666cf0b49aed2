package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/taskenv"
	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers"
	"taskapi/identity"
	"taskapi/identity/opaque"
	"taskapi/socket"
)

// openAPI makes the authenticator and the API behind it.
func (s *wiring) openAPI(alloc *api.Allocation) error {
	s.warnOfIdleRules(alloc)
	issuers, keys := s.trusted()
	var err error
	s.verifier, err = identity.NewVerifier(identity.VerifierConfig{
		Local:     s.keyring,
		Foreign:   issuers,
		Audiences: s.settings.audience(),
		MaxTTL:    s.settings.longestTTL(),
	})
	if err != nil {
		return fmt.Errorf("verification of tokens: %w", err)
	}
	auditor, err := s.auditor()
	if err != nil {
		return err
	}
	authConfig := auth.Config{
		Verifier:       s.verifier,
		Allocations:    s.livenessOf(alloc),
		Logger:         s.logger,
		Policy:         s.policy,
		Limits:         auth.Limits{Set: s.limits},
		Keys:           keys,
		Auditor:        auditor,
		OperatorSecret: s.operatorSecret,
	}
	if s.revocations != nil {
		authConfig.Revocations = s.revocations
	}
	authenticator, err := auth.NewAuthenticator(authConfig)
	if err != nil {
		return err
	}
	versions := &s.kept.versions
	versions.follow(s.runner, s.control.present().text)
	s.authStats = authenticator.Stats
	config := handlers.Config{
		Authenticator: authenticator,
		Allocs:        singleAlloc{alloc.ID, allocAdapter{s.runner, s.control, s.audience, s.cfg.Events, s.logger}},
		Agent: handlers.Agent{
			Version:      s.cfg.Version,
			NomadVersion: taskenv.NomadVersion,
			Region:       *alloc.Job.Region,
			Datacenter:   datacenter,
			NodeID:       alloc.NodeID,
			NodeName:     alloc.NodeName,
		},
		PeerOf:       peerOf,
		Limits:       s.limits,
		Logger:       s.logger,
		SigningKeyID: func() string { return s.keyring.Active().ID },
		Metrics:      s.measure,
		Host:         s.host.Stats,
		Events:       s.events,
		Services:     s.registry,
		Answered:     s.audience.answered,
		Lacking:      s.cfg.Lacking,
		Eased:        s.ease,
		Jobs: jobs{
			runner: s.runner, validate: s.validator(), control: s.control,
			settings: s.settings, allocs: s.cfg.Dir.Allocs(), events: s.cfg.Events, history: versions,
		},
		History: versions,
		Machine: newMachine(s.cfg.Dir.Alloc(s.cfg.ID), s.cfg.Cluster, s.settings.TaskDrivers()),
		Log:     s.log,
		Parser:  parser{settings: s.settings, allocs: s.cfg.Dir.Allocs()},
		Auditor: auditor,
		JWKS:    func() ([]byte, error) { return s.keyring.JWKS(), nil },
	}
	if s.cfg.Cluster != nil {
		kept, err := OpenVariables(s.cfg.Cluster, s.keyring)
		if err != nil {
			return err
		}
		config.Variables = kept
		config.TaskVariables = func(namespace, job string) handlers.Variables { return kept.OfTask(namespace, job) }
	}
	if s.faults != nil {
		config.Fault = s.faults.Next
	}
	if s.settings.Issuer != "" {
		config.OpenIDConfiguration = func() ([]byte, error) { return OpenIDConfiguration(s.settings.Issuer), nil }
	}
	s.api = handlers.New(config)
	return nil
}

// operatorSecret returns the token that a secret of the operator's stands for.
func (s *wiring) operatorSecret(secret string) (token string, known bool) {
	token, err := opaque.Token(s.cfg.Dir.OperatorSecrets(s.cfg.ID), secret)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.logger.Warn("a secret of the operator's can't be used", "error", err)
	}
	return token, err == nil
}

// warnOfIdleRules names the rules of the policy that are about nothing in this allocation: a name that is misspelt would go unnoticed.
func (s *wiring) warnOfIdleRules(alloc *api.Allocation) {
	var tasks []string
	for _, task := range alloc.GetTaskGroup().Tasks {
		tasks = append(tasks, task.Name)
	}
	for _, rule := range s.policy.Idle(alloc.Namespace, tasks) {
		s.logger.Warn("a rule of the policy decides nothing for this allocation: is its name misspelt?", "policy", s.settings.Policy, "rule", rule)
	}
}

// openPolicy returns what --policy names: a preset, or what a file says; nil for nothing.
func openPolicy(path string) (*auth.Policy, error) {
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
		return nil, invalid(fmt.Errorf("--policy %s: %w; give a file, or one of the presets local and nomad", path, UnwrapPath(err)))
	}
	policy, err := auth.ParsePolicy(path, src)
	return policy, invalid(err)
}

// otherFiles is how many an agent has open beside connections, with some room.
const otherFiles = 512

// maxFiles returns how many files the process may open. Go has raised its own limit to it.
func maxFiles() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxInt
	}
	return int(min(limit.Max, math.MaxInt))
}

// limitsOf returns the limits: the defaults, with what the policy file sets of them, and with what --limits says.
func limitsOf(text string, policy *auth.Policy) (limitset.Set, error) {
	set, err := policy.Limits(limitset.Default()).With(text)
	if err == nil {
		err = set.Check()
	}
	if most := maxFiles(); err == nil && set.AllConnections > limitset.Default().AllConnections && set.AllConnections+otherFiles > most {
		err = fmt.Errorf("all-connections=%d, but this process may open %d files, and needs %d others: raise ulimit -n", set.AllConnections, most, otherFiles)
	}
	if err != nil {
		return limitset.Set{}, invalid(fmt.Errorf("--limits: %w", err))
	}
	return set, nil
}

// liveness is what the authenticator wants to know of allocations: this process has one.
type liveness struct {
	id     string
	alloc  *auth.Allocation
	runner interfaces.AllocRunner
}

// livenessOf returns that of the agent's allocation. What its tokens say stays as it is through every update in place.
func (s *wiring) livenessOf(alloc *api.Allocation) liveness {
	return liveness{alloc.ID, &auth.Allocation{
		Region: *alloc.Job.Region, Namespace: alloc.Namespace, JobID: alloc.JobID, TaskGroup: alloc.TaskGroup, Life: s.life,
	}, s.runner}
}

// Lookup returns the allocation, when it is this one, and whether it has ended.
func (l liveness) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	switch {
	case id != l.id:
		return nil, auth.Unknown
	case l.runner.Terminal():
		return l.alloc, auth.Terminal
	}
	return l.alloc, auth.Live
}

// peerOf returns the credentials that the socket read when the connection was accepted.
func peerOf(c net.Conn) (auth.Peer, error) {
	conn, ok := c.(*socket.Conn)
	if !ok {
		return auth.Peer{}, fmt.Errorf("connection of type %T has no peer credentials", c)
	}
	return auth.Peer(conn.Peer()), nil
}
