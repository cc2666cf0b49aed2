package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/hoststats"
	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/handlers"
	"taskapi/handlers/node"
	"taskapi/identity"
	"taskapi/identity/workload"
	"taskapi/socket"
)

// The names of the operator's socket and token in a data directory.
const (
	socketName = "operator.sock"
	tokenName  = "operator.token"
)

// Socket returns the path of the operator's socket of a data directory.
func Socket(dir string) string { return filepath.Join(dir, socketName) }

// mostConnections bounds the open connections to each of the machine's addresses.
const mostConnections = 256

// server answers on the machine's addresses.
type server struct {
	cancel context.CancelFunc
	token  *workload.Tokens
	audit  *auth.AuditLog
	failed chan error
	all    sync.WaitGroup
}

// none has no allocations: requests are about those that the machine finds.
type none struct{}

func (none) Get(string) (handlers.Alloc, bool) { return nil, false }

// serve opens the machine's addresses, and answers until close.
func (m *Machine) serve(ctx context.Context) (_ *server, err error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &server{cancel: cancel, failed: make(chan error, 2)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.audit, err = agent.OpenAudit(m.cfg.Settings, m.cfg.Logger); err != nil {
		return nil, err
	}
	api, err := m.newAPI(s.audit)
	if err != nil {
		return nil, err
	}
	tokens := workload.New(workload.Config{
		Keyring: m.cfg.Keyring, Logger: m.cfg.Logger, Revocations: m.cfg.Revocations, Region: region,
		Namespace: m.self.alloc.Namespace, JobID: selfJob, TaskGroup: selfGroup, AllocationID: m.self.alloc.ID,
		Issuer: m.cfg.Settings.Issuer, Audiences: m.cfg.Settings.Audience(), TTL: m.cfg.Settings.IdentityTTL,
	})
	if s.token, err = tokens.Operator(filepath.Join(string(m.cfg.Dir), tokenName)); err != nil {
		return nil, err
	}
	listeners, err := m.listen()
	if err != nil {
		return nil, err
	}
	s.all.Go(func() { tokens.Run(ctx) })
	s.all.Go(func() { m.cfg.Keyring.Watch(ctx, m.cfg.Logger) })
	s.all.Go(func() { m.cfg.Revocations.Watch(ctx, m.cfg.Logger) })
	owner := auth.Owner{AllocationID: m.self.alloc.ID, UID: uint32(os.Geteuid())}
	for _, l := range listeners {
		s.all.Go(func() {
			if err := api.Serve(ctx, l, owner); err != nil {
				s.failed <- err
			}
		})
	}
	return s, nil
}

// close ends the server, and the requests on it.
func (s *server) close() {
	s.cancel()
	s.all.Wait()
	if s.token != nil {
		s.token.Stop()
	}
	if s.audit != nil {
		_ = s.audit.Close() // it has logged what it could not write
	}
}

// listen opens the operator's socket and, if it is asked for, the TLS address.
func (m *Machine) listen() ([]net.Listener, error) {
	config := socket.Config{
		Path: Socket(string(m.cfg.Dir)), Mode: 0o600, UID: -1, GID: -1, MaxConns: mostConnections,
		Refusal: []byte(handlers.Refusal), Logger: m.cfg.Logger,
	}
	unix, err := socket.Listen(config)
	if errors.Is(err, socket.ErrInUse) {
		return nil, fmt.Errorf("another taskapi agent serves %s", m.cfg.Dir)
	}
	if err != nil {
		return nil, err
	}
	all := []net.Listener{unix}
	if m.cfg.Listen != nil {
		remote, err := m.cfg.Listen.listen()
		if err != nil {
			return nil, errors.Join(err, unix.Close())
		}
		all = append(all, remote)
	}
	return all, nil
}

// node describes this machine.
func (m *Machine) node() (node.Machine, node.Agent) {
	return agent.NewNode(string(m.cfg.Dir), m.cfg.Cluster, m.cfg.Settings, m.cfg.Version)
}

func (m *Machine) newAPI(audit *auth.AuditLog) (*handlers.API, error) {
	verifier, err := identity.NewVerifier(identity.VerifierConfig{
		Local: m.cfg.Keyring, Audiences: m.cfg.Settings.Audience(), MaxTTL: m.cfg.Settings.LongestTTL(),
	})
	if err != nil {
		return nil, err
	}
	auditor := agent.AuditorOf(audit)
	limits := limitset.Default()
	authenticator, err := auth.NewAuthenticator(auth.Config{
		Verifier: verifier, Logger: m.cfg.Logger, Auditor: auditor, Limits: auth.Limits{Set: limits},
		Keys: []identity.KeySource{m.cfg.Keyring}, Revocations: m.cfg.Revocations,
		Allocations: agent.OnlyAllocation{ID: m.self.alloc.ID, Alloc: &auth.Allocation{
			Region: region, Namespace: m.self.alloc.Namespace, JobID: selfJob, TaskGroup: selfGroup,
		}},
	})
	if err != nil {
		return nil, err
	}
	variables, err := agent.OpenVariables(m.cfg.Cluster, m.cfg.Keyring)
	if err != nil {
		return nil, err
	}
	machine, about := m.node()
	config := handlers.Config{
		Server: handlers.Server{
			Authenticator: authenticator, Allocs: none{}, PeerOf: peerOf, Limits: limits, Logger: m.cfg.Logger,
			Auditor: auditor, AuditReads: m.cfg.Settings.AuditReads, GiveWay: true,
		},
		Node: handlers.Node{
			Agent: about, Machine: machine, Host: hoststats.New(string(m.cfg.Dir)).Stats,
			Log:  m.cfg.Log,
			JWKS: func() ([]byte, error) { return m.cfg.Keyring.JWKS(), nil },
		},
		SigningKeyID: func() string { return m.cfg.Keyring.Active().ID },
		Parser:       agent.NewParser(m.cfg.Settings, m.cfg.Dir.Allocs()),
		Variables:    variables,
		Services:     registry.New(m.cfg.Cluster),
	}
	if m.fleet != nil {
		config.Fleet, config.Elsewhere = m.fleet, m.elsewhere
	}
	return handlers.NewMachine(config, m), nil
}
