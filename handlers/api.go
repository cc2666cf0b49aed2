// Package handlers answers Nomad's HTTP API on an authenticated socket: the routes as one table, one file for each resource,
// JSON as Nomad encodes it, blocking queries, and errors to statuses.
//
// It promises that no request reaches a route without authentication, whatever its path or method; that a caller sees its own allocation
// and no other; that every answer has a bound in size and time; that the streams and upgraded connections of a socket are few, with a
// bound for each frame, and end with the token that opened them; and that a fault is a bare 500 to the client and one line in the log. It
// never checks a token, opens a socket, or runs a task: those are parameters.
package handlers

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers/internal/budget"
)

// Authenticator decides who a request comes from and what that caller may do. A nil Denial allows it.
type Authenticator interface {
	// Authenticate returns who sent a request on the owner's socket from the peer.
	Authenticate(r *http.Request, owner auth.Owner, peer auth.Peer) (*auth.Principal, *auth.Denial)
	// Recheck decides once more on a request that Authenticate has let in, after it has waited or while it goes on.
	Recheck(r *http.Request, p *auth.Principal, owner auth.Owner, peer auth.Peer) *auth.Denial
	// Authorize decides whether the principal has one of the capabilities.
	Authorize(p *auth.Principal, anyOf auth.CapabilitySet) *auth.Denial
}

var _ Authenticator = (*auth.Authenticator)(nil)

// Allocs finds allocations.
type Allocs interface {
	// Get returns the allocation with the ID, in lower case, and whether there is one.
	Get(id string) (Alloc, bool)
}

// Alloc is one allocation as it stands. What else can be done with one are the small interfaces beside the handlers: Checker, Restarter,
// Signaler, Stopper, Execer. A route is NoRoute for an allocation without its interface. The errors of their methods are *apierror.Error, wrapped
// or not; anything else is a fault.
type Alloc interface {
	// Snapshot returns the allocation as it stands. It is shared and not changed; ModifyIndex grows with every change.
	Snapshot() *api.Allocation
	// Wait returns the allocation once its ModifyIndex is above index, or as it stands when ctx ends.
	Wait(ctx context.Context, index uint64) *api.Allocation
}

// Agent describes the process.
type Agent struct {
	Version      string // of the program; empty for none
	NomadVersion string // of the API that it speaks: "1.2.3", "1.2.3-dev" or "1.2.3+metadata"
	Region       string
	Datacenter   string
	NodeID       string
	NodeName     string
}

// Config holds the parts of an API. Authenticator, Allocs, PeerOf and Logger are required.
type Config struct {
	Authenticator Authenticator
	Allocs        Allocs
	Agent         Agent

	// PeerOf returns the process at the other end of a connection. A connection for which it fails is closed.
	PeerOf func(net.Conn) (auth.Peer, error)

	// Logger gets faults of the server, once each, and at debug level net/http's lines on bad clients.
	Logger *slog.Logger

	// Auditor gets a record of every request that may change something, and of every one without the capability; nil for none. It may
	// refuse a change before it is carried out, which is 503. The authenticator records its refusals itself.
	Auditor auth.Auditor

	// AuditReads has the Auditor get a record of every other request, too, whose caller is known, before the client has the answer.
	AuditReads bool

	// Fault returns what answers a request in the place of its route, as a server in trouble would, and with which status, 0 for none; a nil
	// handler leaves the request to its route. It is called for callers who are known, and may wait until the request's context ends. Nil for no
	// faults: they are for tests of clients, and nothing else.
	Fault func(r *http.Request, owner auth.Owner) (status int, answer http.Handler)

	// Limits bound the streams and the waiting queries of a task's socket; the zero value is limitset.Default.
	Limits limitset.Set

	// SigningKeyID returns the ID of the key that signs new identities, shown in the allocation; nil for none.
	SigningKeyID func() string

	// JWKS and OpenIDConfiguration return the JSON documents by which others can trust the identities; nil for none.
	JWKS                func() ([]byte, error)
	OpenIDConfiguration func() ([]byte, error)

	// Jobs takes other versions of the job; nil for none: PUT /v1/jobs and plans are then 404.
	Jobs Jobs

	// History keeps the versions of the job; nil for none: the present one is then all that there is.
	History History

	// Parser reads and judges jobs; nil for none: POST /v1/jobs/parse and PUT /v1/validate/job are then 404.
	Parser Parser

	// Variables are those of all namespaces; nil for none: /v1/vars and /v1/var are then 501. TaskVariables returns them for a task of a job, whose
	// writes leave room for the operator and for other jobs; nil for the same as Variables.
	Variables     Variables
	TaskVariables func(namespace, job string) Variables

	// Machine is the one that runs the allocation; nil for none: nodes and metadata are then 404.
	Machine Machine

	// Services are the registrations of services; nil for none: /v1/services and its siblings are then 404.
	Services Services

	// Events are those of GET /v1/event/stream; nil for none: it is then 404.
	Events *Events

	// Lacking is called for each request whose caller is known but lacks the capability, with that capability and the
	// variable or path of the request. Nil for nobody.
	Lacking func(capability, object string)

	// Answered is called after each answer but errors, streams and upgrades, with the index of the allocation in it, 0 for none; nil for
	// nobody.
	Answered func(owner auth.Owner, index uint64)

	// Eased is called when a connection has ended and when a long answer was sent: their memory is free again. Nil for
	// nobody.
	Eased func()

	// Log is what GET /v1/agent/monitor shows; nil for none: it is then 404.
	Log AgentLog

	// Metrics returns measurements; nil for none. Those of the Go runtime and of the process are added.
	Metrics func(context.Context) []Metric

	// Host returns the use of this machine's memory, CPUs and disk, and when it was measured; nil for none: GET
	// /v1/client/stats is then 404. What it returns is shared and not changed.
	Host func(context.Context) (*api.HostStats, time.Time, error)
}

// API answers requests for the allocations of one process, on any number of sockets.
type API struct {
	config Config

	router   *router
	requests sync.Pool // of *request
	pacer    *pacer
	budget   *budget.Budget // of the memory for long answers

	evaluations evaluations
	taskExecs   atomic.Int64 // commands that run over the sockets of tasks

	views      [views]atomic.Pointer[view]
	allocation [views]cache // by version as it is shown, and signing key
	checks     cache        // by allocation and version
	usage      cache        // by allocation, time of the sample and task

	registering chan struct{} // holds an element while a job is being registered
	parsing     chan struct{} // holds an element while one is being parsed or judged
}

// New returns an API. It panics when a required field is missing.
func New(config Config) *API {
	if config.Authenticator == nil || config.Allocs == nil || config.PeerOf == nil || config.Logger == nil {
		panic("handlers: Config needs Authenticator, Allocs, PeerOf and Logger")
	}
	if config.Eased == nil {
		config.Eased = func() {}
	}
	if config.TaskVariables == nil {
		config.TaskVariables = func(string, string) Variables { return config.Variables }
	}
	config.Limits = cmp.Or(config.Limits, limitset.Default())
	a := &API{
		config:      config,
		registering: make(chan struct{}, 1),
		parsing:     make(chan struct{}, 1),
		pacer:       newPacer(),
		budget:      budget.New(bulkyBytes),
		requests:    sync.Pool{New: func() any { return new(request) }},
	}
	a.evaluations.made = a.announceEvaluation
	a.router = newRouter(a.table())
	return a
}
