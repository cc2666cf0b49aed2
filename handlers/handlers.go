// Package handlers answers Nomad's HTTP API on an authenticated socket. It assembles one table of routes from the
// packages below it, each of which has the routes of one family of resources: allocations, jobs, files, exec,
// variables, services, node, events and search. Package handlers/internal/route leads a request through that table to
// its answer.
//
// It promises that no request reaches a route without authentication, whatever its path or method; that a caller sees
// its own allocation and no other; that every answer has a bound in size and time; that the streams and upgraded
// connections of a socket are few, with a bound for each frame, and end with the token that opened them; and that a
// fault is a bare 500 to the client and one line in the log. It never checks a token, opens a socket, or runs a task:
// its Config has the parts that do.
package handlers

import (
	"cmp"
	"net/url"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"

	stored "taskapi/allocrunner/cluster/variables"
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
	"taskapi/handlers/machine"
	"taskapi/handlers/node"
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

// Fleet has what the operator reads of other machines.
type Fleet interface {
	allocations.Fleet
	node.Fleet
}

// The parts of a Config.
type (
	// Server has what the server of a socket needs. Authenticator, Allocs, PeerOf and Logger are required.
	Server = route.Config
	// Node describes the machine and the agent. New sets KeyID and the two functions that are called for a change.
	Node = node.Config
)

// Config holds the parts of an API.
type Config struct {
	Server
	Node

	// SigningKeyID returns the ID of the key that signs new identities, shown in the allocation; nil for none.
	SigningKeyID func() string

	// Jobs takes other versions of the job. Without Jobs, PUT /v1/jobs and plans are 404.
	Jobs jobs.Registrar

	// History keeps the versions of the job. Without History, there is only the present version.
	History jobs.History

	// Parser reads and judges jobs. Without Parser, POST /v1/jobs/parse and PUT /v1/validate/job are 404.
	Parser jobs.Parser

	// Variables are the variables of all namespaces. Without Variables, /v1/vars and /v1/var are 501. TaskVariables
	// returns the variables for a task of a job, whose writes leave room for the operator and for other jobs. Without
	// TaskVariables, tasks get Variables.
	Variables     variables.Store
	TaskVariables func(namespace, job string) variables.Store

	// Services are the registrations of services. Without Services, /v1/services and its siblings are 404.
	Services services.Registry

	// Fleet has the allocations and the machines that share a store, for the operator; nil for this machine alone.
	Fleet Fleet

	// Events are the events of GET /v1/event/stream, which is 404 without Events.
	Events *events.Log

	machine *search.Machine       // nil for the socket of one allocation
	keep    func(*api.Evaluation) // takes those that a machine makes for ended allocations; nil without a machine
}

// keyID returns SigningKeyID, or a function that returns no ID.
func (c Config) keyID() func() string {
	if c.SigningKeyID != nil {
		return c.SigningKeyID
	}
	return func() string { return "" }
}

// feed returns the changes of Variables; nil without Variables.
func (c Config) feed() *stored.Feed {
	if c.Variables == nil {
		return nil
	}
	return c.Variables.Feed()
}

// API answers requests for the allocations of one process, on any number of sockets.
type API = route.Server

// New returns an API. It panics when a required field is missing.
func New(config Config) *API {
	if config.Authenticator == nil || config.Allocs == nil || config.PeerOf == nil || config.Logger == nil {
		panic("handlers: Config needs Authenticator, Allocs, PeerOf and Logger")
	}
	return newAPI(config, router(), table(config))
}

// NewMachine returns an API for all allocations of a machine. Jobs, History and Events of the configuration are not
// used.
func NewMachine(config Config, of machine.Machine) *API {
	made := new(machine.Evaluations)
	config.machine = &search.Machine{Allocations: of.Allocations, Evaluations: made.All}
	config.keep = made.Add
	rows := machine.Routes(machine.Config{
		Machine: of, Parser: config.Parser, Evaluations: made, KeyID: config.keyID(),
		Variables: events.Config{Variables: config.feed()}.OfVariables,
	}, table(config))
	return newAPI(config, router(), rows)
}

// router finds the routes of every table of this process: a Config changes only what their handlers are.
var router = sync.OnceValue(func() *route.Router { return route.NewRouter(table(Config{})) })

// Prepare makes the tables that the first New and the first answer about an allocation need. A program can call Prepare
// in a goroutine beside its other preparations.
func Prepare() {
	router()
	_, _ = allocations.Encode(&api.Allocation{})
}

// Readings returns the two escaped paths that another server may read in a URL. An encoded slash is a part of a name in
// the path that was sent, and divides names in the decoded path.
func Readings(u *url.URL) (sent, decoded string) {
	return u.EscapedPath(), (&url.URL{Path: u.Path}).EscapedPath()
}

// Detail adds to the record of a request what its route here adds, for a request that another server answers. namespace
// is that of the request's variable.
func Detail(record auth.Record, method string, u *url.URL, namespace string) auth.Record {
	sent, decoded := Readings(u)
	return router().Detail(record, method, namespace, u.Query(), sent, decoded)
}

// Needs returns the capabilities of which a request for the escaped path needs one. A path without a route here needs
// one that no policy gives.
func Needs(method, path string) auth.CapabilitySet { return router().Needs(method, path) }

func newAPI(config Config, router *route.Router, rows []route.Route) *API {
	if config.Answered == nil {
		config.Answered = func(auth.Owner, uint64) {}
	}
	config.Region, config.Limits = config.Agent.Region, cmp.Or(config.Limits, limitset.Default())
	return route.NewServer(config.Server, router, rows)
}

// table returns all routes, family by family, and then those that are absent.
func table(c Config) []route.Route {
	keyID := c.keyID()
	evaluations := evaluations.New(func(e *api.Evaluation, of *api.Allocation) {
		c.Events.AnnounceEvaluation(c.Allocs, e, of)
		if c.keep != nil {
			c.keep(e)
		}
	})
	nodes := c.Node
	nodes.Fleet = c.Fleet
	nodes.KeyID, nodes.ForgetEvaluations = keyID, evaluations.Forget
	nodes.Changed = func(current *api.Allocation, n *wire.Node) { c.Events.AnnounceNode(c.Allocs, current, n) }
	return slices.Concat(
		allocations.Routes(allocations.Config{
			Evaluations: evaluations, KeyID: keyID, Fleet: c.Fleet, Refusals: c.Refusals,
		}),
		jobs.Routes(jobs.Config{Registrar: c.Jobs, History: c.History, Parser: c.Parser, Evaluations: evaluations}),
		files.Routes(c.Logger),
		exec.Routes(),
		variables.Routes(c.Variables, c.TaskVariables),
		services.Routes(c.Services),
		node.Routes(nodes),
		events.Routes(events.Config{
			Events: c.Events, Variables: c.feed(), KeyID: keyID, Node: nodes.Describe, Logger: c.Logger,
		}),
		search.Routes(search.Config{
			Evaluations: evaluations, Deployments: jobs.Deployments, Variables: c.Variables, Machine: c.machine,
			NodeID: c.Agent.NodeID, NodeName: c.Agent.NodeName,
		}),
		absentRoutes(),
	)
}
