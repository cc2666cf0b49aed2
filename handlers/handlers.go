// Package handlers answers Nomad's HTTP API on an authenticated socket. It assembles one table of routes from the
// packages below it, each of which has the routes of one family of resources: allocations, jobs, files, exec,
// variables, services, node, events and search. Package handlers/internal/route leads a request through that table to
// its answer.
//
// It promises that no request reaches a route without authentication, whatever its path or method; that a caller sees
// its own allocation and no other; that every answer has a bound in size and time; that the streams and upgraded
// connections of a socket are few, with a bound for each frame, and end with the token that opened them; and that a
// fault is a bare 500 to the client and one line in the log. It never checks a token, opens a socket, or runs a task:
// those are parameters.
package handlers

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/handlers/allocations"
	"taskapi/handlers/events"
	"taskapi/handlers/exec"
	"taskapi/handlers/files"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/handlers/jobs"
	"taskapi/handlers/node"
	"taskapi/handlers/scrape"
	"taskapi/handlers/search"
	"taskapi/handlers/services"
	"taskapi/handlers/variables"
)

// Refusal is the HTTP response for a connection over a limit. The connection is closed after it, without reading a
// request. Retry-After is a second, about what a short request and its connection take.
const Refusal = "HTTP/1.1 503 Service Unavailable\r\n" +
	"Connection: close\r\n" +
	"Content-Length: 20\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\n" +
	"Retry-After: 1\r\n" +
	"\r\n" +
	"too many connections"

// The parts of an API that its users name.
type (
	Authenticator = route.Authenticator // decides who a request comes from and what that caller may do
	Alloc         = route.Alloc         // is one allocation as it stands
	Allocs        = route.Allocs        // finds allocations
	Variables     = variables.Store     // are those of all namespaces
)

// Config holds the parts of an API. Authenticator, Allocs, PeerOf and Logger are required.
type Config struct {
	Authenticator route.Authenticator
	Allocs        route.Allocs
	Agent         node.Agent

	// PeerOf returns the process at the other end of a connection. A connection for which it fails is closed.
	PeerOf func(net.Conn) (auth.Peer, error)

	// Logger gets faults of the server, once each, and at debug level net/http's lines on bad clients.
	Logger *slog.Logger

	// Auditor gets a record of every request that may change something, and of every one without the capability; nil
	// for none. It may refuse a change before it is carried out, which is 503. The authenticator records its refusals
	// itself.
	Auditor auth.Auditor

	// AuditReads gives the Auditor a record of every other request, too, whose caller is known, before the client has
	// the answer.
	AuditReads bool

	// Fault returns what answers a request instead of its route, as a server in trouble would, and the status in the
	// record. A nil handler leaves the request to its route. It is called for callers who are known, and may wait until
	// the request's context ends. Nil for no faults: they are for tests of clients, and nothing else.
	Fault func(r *http.Request, owner auth.Owner) (status int, answer http.Handler)

	// Limits bound the streams and the waiting queries of a task's socket; the zero value is limitset.Default.
	Limits limitset.Set

	// SigningKeyID returns the ID of the key that signs new identities, shown in the allocation; nil for none.
	SigningKeyID func() string

	// JWKS and OpenIDConfiguration return the JSON documents by which others can trust the identities; nil for none.
	JWKS                func() ([]byte, error)
	OpenIDConfiguration func() ([]byte, error)

	// Jobs takes other versions of the job; nil for none: PUT /v1/jobs and plans are then 404.
	Jobs jobs.Registrar

	// History keeps the versions of the job; nil for none: the present one is then all that there is.
	History jobs.History

	// Parser reads and judges jobs; nil for none: POST /v1/jobs/parse and PUT /v1/validate/job are then 404.
	Parser jobs.Parser

	// Variables are those of all namespaces; nil for none: /v1/vars and /v1/var are then 501. TaskVariables returns
	// them for a task of a job, whose writes leave room for the operator and for other jobs; nil for the same as
	// Variables.
	Variables     variables.Store
	TaskVariables func(namespace, job string) variables.Store

	// Machine is the one that runs the allocation; nil for none: nodes and metadata are then 404.
	Machine node.Machine

	// Services are the registrations of services; nil for none: /v1/services and its siblings are then 404.
	Services services.Registry

	// Events are those of GET /v1/event/stream; nil for none: it is then 404.
	Events *events.Log

	// Lacking is called for each request whose caller is known but lacks the capability, with that capability and the
	// variable or path of the request. Nil for nobody.
	Lacking func(capability, object string)

	// Answered is called after each answer but errors, streams and upgrades, with the index of the allocation in it, 0
	// for none; nil for nobody.
	Answered func(owner auth.Owner, index uint64)

	// Eased is called when a connection has ended and when a long answer was sent: their memory is free again. Nil for
	// nobody.
	Eased func()

	// Log is what GET /v1/agent/monitor shows; nil for none: it is then 404.
	Log node.AgentLog

	// Metrics returns measurements; nil for none.
	Metrics func(context.Context) []scrape.Metric

	// Host returns the use of this machine's memory, CPUs and disk, and when it was measured; nil for none: GET
	// /v1/client/stats is then 404. What it returns is shared and not changed.
	Host func(context.Context) (*api.HostStats, time.Time, error)
}

// API answers requests for the allocations of one process, on any number of sockets.
type API = route.Server

// New returns an API. It panics when a required field is missing.
func New(config Config) *API {
	if config.Authenticator == nil || config.Allocs == nil || config.PeerOf == nil || config.Logger == nil {
		panic("handlers: Config needs Authenticator, Allocs, PeerOf and Logger")
	}
	return newAPI(config, table(config))
}

func newAPI(config Config, rows []route.Route) *API {
	if config.Eased == nil {
		config.Eased = func() {}
	}
	if config.Lacking == nil {
		config.Lacking = func(string, string) {}
	}
	if config.Answered == nil {
		config.Answered = func(auth.Owner, uint64) {}
	}
	return route.NewServer(route.Config{
		Authenticator: config.Authenticator, Allocs: config.Allocs, Region: config.Agent.Region, PeerOf: config.PeerOf,
		Logger: config.Logger, Auditor: config.Auditor, AuditReads: config.AuditReads, Fault: config.Fault,
		Limits: cmp.Or(config.Limits, limitset.Default()), Lacking: config.Lacking, Answered: config.Answered,
		Eased: config.Eased,
	}, rows)
}

// table returns all routes, family by family, and then those that are absent.
func table(c Config) []route.Route {
	keyID := c.SigningKeyID
	if keyID == nil {
		keyID = func() string { return "" }
	}
	evaluations := evaluations.New(func(e *api.Evaluation, of *api.Allocation) {
		c.Events.AnnounceEvaluation(c.Allocs, e, of)
	})
	nodes := node.Config{
		Agent: c.Agent, Machine: c.Machine, Host: c.Host, Log: c.Log, Metrics: c.Metrics, KeyID: keyID, JWKS: c.JWKS,
		OpenIDConfiguration: c.OpenIDConfiguration, ForgetEvaluations: evaluations.Forget,
		Changed: func(current *api.Allocation, n *wire.Node) { c.Events.AnnounceNode(c.Allocs, current, n) },
	}
	return slices.Concat(
		allocations.Routes(allocations.Config{Evaluations: evaluations, KeyID: keyID}),
		jobs.Routes(jobs.Config{Registrar: c.Jobs, History: c.History, Parser: c.Parser, Evaluations: evaluations}),
		files.Routes(c.Logger),
		exec.Routes(),
		variables.Routes(c.Variables, c.TaskVariables),
		services.Routes(c.Services),
		node.Routes(nodes),
		events.Routes(events.Config{Events: c.Events, KeyID: keyID, Node: nodes.Describe, Logger: c.Logger}),
		search.Routes(search.Config{
			Evaluations: evaluations, Deployments: jobs.Deployments, Variables: c.Variables, NodeID: c.Agent.NodeID,
			NodeName: c.Agent.NodeName,
		}),
		absentRoutes(),
	)
}
