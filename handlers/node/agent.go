// Package node has the routes of this machine and of the agent that serves it: their state and configuration, the
// machine's metadata, and what the agent logs. It also has Nomad's routes about the caller's token, the caller's
// namespace and the cluster, whose only member is this agent.
package node

import (
	"context"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/handlers/scrape"
)

// Agent describes the process.
type Agent struct {
	Version      string // of the program; empty for none
	NomadVersion string // of the API that it speaks: "1.2.3", "1.2.3-dev" or "1.2.3+metadata"
	Region       string
	Datacenter   string
	NodeID       string
	NodeName     string
}

// Config has what the routes need.
type Config struct {
	Agent Agent

	// Machine is the one that runs the allocation; nil for none: nodes and metadata are then 404.
	Machine Machine

	// Fleet has the machines that share a store, for the operator; nil for this machine alone.
	Fleet Fleet

	// Host returns the use of this machine's memory, CPUs and disk, and when it was measured; nil for none: GET
	// /v1/client/stats is then 404. What it returns is shared and not changed.
	Host func(context.Context) (*api.HostStats, time.Time, error)

	// Log is what GET /v1/agent/monitor shows; nil for none: it is then 404.
	Log AgentLog

	// Metrics returns measurements; nil for none.
	Metrics func(context.Context) []scrape.Metric

	// JWKS and OpenIDConfiguration return the JSON documents by which others can trust the identities; nil for none.
	JWKS, OpenIDConfiguration func() ([]byte, error)

	KeyID             func() string // of the key that signs new identities, shown in the node
	ForgetEvaluations func()
	Changed           func(current *api.Allocation, n *wire.Node) // is called when the node's metadata has changed
}

type handlers struct{ Config }

// Routes returns the rows of the node and its agent.
func Routes(c Config) []route.Route {
	h := &handlers{c}
	return []route.Route{
		route.Read("/v1/agent/health", auth.Authenticated, h.health,
			"Reports that the agent is healthy; type=client or type=server for one part."),
		route.Read("/v1/agent/self", auth.AgentRead, func(context.Context, *route.Request) (route.Answer, error) {
			return route.Respond(api.AgentSelf{Member: c.Agent.member(), Stats: c.Agent.stats(), Config: c.Agent.settings()})
		}, "Returns the agent's version, place and configuration."),
		route.Read("/v1/agent/monitor", auth.AgentMonitor, h.monitor, "Streams what the agent logs.").
			Flags("log_json", "plain").Answering(route.Stream).Given(c.Log != nil, apierror.NoRoute),
		route.Read("/v1/agent/members", auth.NodeRead, always(c.Agent.members()),
			"Lists the members of the cluster: this agent."),
		route.Read("/v1/agent/servers", auth.AgentRead, always([]string{leaderAddress}),
			"Lists the servers: the address of this agent's leader."),
		route.Read("/v1/agent/schedulers", auth.AgentRead, always(api.AgentSchedulerWorkersInfo{
			ServerID: c.Agent.member().Name, Schedulers: []api.AgentSchedulerWorkerInfo{},
		}), "Lists the workers that schedule: none."),
		route.Read("/v1/agent/schedulers/config", auth.AgentRead, always(api.AgentSchedulerWorkerConfigResponse{
			ServerID: c.Agent.member().Name, EnabledSchedulers: []string{},
		}), "Returns how many workers schedule: none."),
		route.Read("/v1/operator/scheduler/configuration", auth.OperatorOnly, route.Constant(schedulerConfiguration),
			"Returns how jobs are placed: without an algorithm and without preemption."),
		route.Read("/v1/operator/upgrade-check/vault-workload-identity", auth.OperatorOnly, route.Constant(vaultCheck),
			"Lists no job: each task with a `vault` block has an identity for Vault."),
		route.Read("/v1/operator/license", auth.OperatorOnly, func(context.Context, *route.Request) (route.Answer, error) {
			return route.Answer{Status: http.StatusNoContent}, nil
		}, "Answers 204: there is no license."),
		route.Read("/v1/regions", auth.Authenticated, always([]string{c.Agent.Region}),
			"Lists the regions: that of the agent."),
		route.Read("/v1/status/leader", auth.Authenticated, always(leaderAddress), "Returns the address of the leader."),
		route.Read("/v1/status/peers", auth.Authenticated, always([]string{leaderAddress}),
			"Lists the addresses of the servers."),
		route.Read("/v1/metrics", auth.OperatorOnly, h.metrics,
			"Returns measurements, as JSON or with format=prometheus as text."),
		route.Write("/v1/system/gc", auth.OperatorOnly, func(context.Context, *route.Request) (route.Answer, error) {
			c.ForgetEvaluations() // a directory of an allocation that has ended is removed by taskapi gc
			return route.Respond(nil)
		}, "Forgets the evaluations that are kept."),
		route.Write("/v1/system/reconcile/summaries", auth.OperatorOnly, always(nil),
			"Does nothing: summaries are always up to date."),

		route.Read("/v1/nodes", auth.NodeRead, h.nodes,
			"Lists this machine; on the operator's socket all machines of a cluster.").Flags("resources", "os"),
		route.Read("/v1/node/{node}", auth.NodeRead, h.fleet(h.own(h.get), h.other),
			"Returns a machine: attributes, drivers, resources."),
		route.Read("/v1/node/{node}/allocations", auth.NodeRead,
			route.OrNone(h.fleet(h.own(h.allocations), h.otherAllocations)),
			"Lists the caller's allocation, or those of another machine."),
		route.Read("/v1/node/pools", auth.ReadJob, route.Unchanging(listPools),
			"Lists the pools of this machine: all and default."),
		route.Read("/v1/node/pool/{pool}", auth.ReadJob, route.Unchanging(pool), "Returns a pool of this machine."),
		route.Read("/v1/node/pool/{pool}/nodes", auth.NodeRead, h.poolNodes,
			"Lists the machines of a pool, as GET /v1/nodes does.").Flags("resources", "os"),
		route.Read("/v1/client/metadata", auth.NodeRead, h.metadata, "Returns this machine's metadata.").
			Given(c.Machine != nil, apierror.NoRoute),
		route.Write("/v1/client/metadata", auth.NodeWrite, route.Decoded(false, h.setMetadata),
			"Sets values of this machine's metadata, or removes them.").WithBody(maxMetadata).
			Given(c.Machine != nil, apierror.NoRoute),
		route.Read("/v1/client/stats", auth.NodeRead, h.hostStats,
			"Returns the use of the machine's memory, CPUs and disk.").Given(c.Host != nil, apierror.NoRoute),
		route.Write("/v1/client/gc", auth.NodeWrite, h.clientGC, "Removes the allocation if it has ended.").
			AlsoBy(http.MethodGet),

		route.Read("/v1/namespaces", auth.Authenticated, list.OfJob(NamespaceListing, namespaces),
			"Lists the namespace of the caller's job, if the caller may do something in it."),
		route.Read("/v1/namespace/{namespace}", auth.ReadJob, route.Reading(namespace),
			"Returns the namespace of the caller's job."),
		route.Read("/v1/acl/token/self", auth.OperatorOnly, tokenSelf, "Describes the operator's token."),
		route.Read("/v1/acl/token/{name}", auth.OperatorOnly, tokenByID,
			"Describes the operator's token by its AccessorID; there are no others."),
		route.Read("/v1/acl/tokens", auth.OperatorOnly, list.OfJob(tokenListing, tokens), "Lists the operator's token."),
		route.Read("/v1/acl/whoami", auth.Authenticated, whoami, "Returns the claims of the caller's token."),
		route.Read("/.well-known/jwks.json", auth.Authenticated, h.jwks, "Returns the public keys that verify identities.").
			Given(c.JWKS != nil, apierror.NoRoute),
		route.Read("/.well-known/openid-configuration", auth.Authenticated, h.openIDConfiguration,
			"Returns where to find those keys.").Given(c.OpenIDConfiguration != nil, apierror.NoRoute),
	}
}

func always(value any) route.Handler {
	return func(context.Context, *route.Request) (route.Answer, error) { return route.Respond(value) }
}

// health answers GET /v1/agent/health: ?type=client or ?type=server leaves the other out. A process that answers is
// healthy.
func (h *handlers) health(_ context.Context, r *route.Request) (route.Answer, error) {
	well := &api.AgentHealth{Ok: true, Message: "ok"}
	health := api.AgentHealthResponse{Client: well, Server: well}
	switch part := r.Query().Get("type"); part {
	case "":
	case "client":
		health.Server = nil
	case "server":
		health.Client = nil
	default:
		return route.Answer{}, route.Invalid("type must be client or server, not %s", route.Clip(part))
	}
	return route.Respond(health)
}

// The place in a cluster that this process claims.
const (
	// leaderAddress is the address of a Nomad server on the same machine. Nothing listens there, but clients take an
	// empty leader for a cluster without one.
	leaderAddress = "127.0.0.1:4647"
	agentAddress  = "127.0.0.1"
	serfPort      = 4648 // Nomad's default
)

func (a *Agent) member() api.AgentMember {
	return api.AgentMember{
		Name:   a.NodeName + "." + a.Region,
		Addr:   agentAddress,
		Port:   serfPort,
		Status: "alive",
		Tags: map[string]string{
			"role": "nomad", "dc": a.Datacenter, "region": a.Region, "id": a.NodeID,
			"build": a.NomadVersion, "taskapi": a.Version, "revision": "", "vsn": "1", "raft_vsn": "3",
			"port": "4647", "rpc_addr": agentAddress, "expect": "1", "bootstrap": "1",
		},
		// These are of Nomad's members.
		ProtocolMin: 1, ProtocolMax: 5, ProtocolCur: 2, DelegateMin: 2, DelegateMax: 5, DelegateCur: 4,
	}
}

// constantMeta are the headers of an answer that never changes.
var constantMeta = wire.Meta{Index: 1, KnownLeader: true}

// schedulerConfiguration is that of GET /v1/operator/scheduler/configuration. There is one machine to choose from,
// nothing makes room for a job of a higher priority, and a task may have more memory than it reserves, with memory_max.
var schedulerConfiguration = struct {
	SchedulerConfig api.SchedulerConfiguration
	wire.Meta
}{api.SchedulerConfiguration{MemoryOversubscriptionEnabled: true, CreateIndex: 1, ModifyIndex: 1}, constantMeta}

// vaultCheck is what GET /v1/operator/upgrade-check/vault-workload-identity finds: nothing to do.
var vaultCheck = struct {
	api.VaultWorkloadIdentityUpgradeCheck
	wire.Meta
}{api.VaultWorkloadIdentityUpgradeCheck{
	JobsWithoutVaultIdentity: []*api.JobListStub{}, OutdatedNodes: []*api.NodeListStub{},
}, constantMeta}

func (a *Agent) stats() map[string]map[string]string {
	return map[string]map[string]string{
		"client": {
			"node_id": a.NodeID, "known_servers": leaderAddress, "num_allocations": "1",
			"last_heartbeat": "0s", "heartbeat_ttl": "0s",
		},
		"nomad": {
			"server": "true", "leader": "true", "leader_addr": leaderAddress, "bootstrap": "true", "known_regions": "1",
		},
		"raft":    {"num_peers": "0"}, // 'nomad check' needs it
		"taskapi": {"version": a.Version},
		"runtime": {
			"goroutines":  strconv.Itoa(runtime.NumGoroutine()),
			"cpu_count":   strconv.Itoa(runtime.NumCPU()),
			"max_procs":   strconv.Itoa(runtime.GOMAXPROCS(0)),
			"kernel.name": runtime.GOOS,
			"arch":        runtime.GOARCH,
			"version":     runtime.Version(),
		},
	}
}

// settings returns those of a Nomad agent's settings that say something here: the place, Nomad's version, that requests
// need tokens, and which parts of an agent there are.
func (a *Agent) settings() map[string]any {
	core, metadata, _ := strings.Cut(a.NomadVersion, "+")
	version, prerelease, _ := strings.Cut(core, "-")
	return map[string]any{
		"Region":     a.Region,
		"Datacenter": a.Datacenter,
		"NodeName":   a.NodeName,
		"Version": map[string]any{
			"Version": version, "VersionPrerelease": prerelease, "VersionMetadata": metadata,
			"Revision": "", "BuildDate": nil,
		},
		// Nothing is cached beyond a request, hence no times to live.
		"ACL": map[string]any{
			"Enabled": true, "ReplicationToken": "", "PolicyTTL": 0, "RoleTTL": 0, "TokenTTL": 0,
			"TokenMinExpirationTTL": 0, "TokenMaxExpirationTTL": 0,
		},
		"Client":             map[string]any{"Enabled": true, "NodePool": wire.NodePool, "NomadServiceDiscovery": true},
		"Server":             map[string]any{"Enabled": true},
		"DisableUpdateCheck": true,
		"EnableDebug":        false, // there is no /v1/agent/pprof
		"TLSConfig":          map[string]any{"EnableHTTP": false, "EnableRPC": false},
		"Telemetry": map[string]any{
			"PrometheusMetrics": true, "PublishAllocationMetrics": true, "PublishNodeMetrics": true,
		},
		"UI": map[string]any{"Enabled": false, "ShowCLIHints": false}, // on this socket
	}
}

// members are those of GET /v1/agent/members: this process alone.
func (a *Agent) members() api.ServerMembers {
	return api.ServerMembers{
		ServerName: a.NodeName, ServerRegion: a.Region, ServerDC: a.Datacenter, Members: []*api.AgentMember{new(a.member())},
	}
}

// metrics answers GET /v1/metrics: JSON in Nomad's shape, or with ?format=prometheus the text that Prometheus reads.
func (h *handlers) metrics(ctx context.Context, r *route.Request) (route.Answer, error) {
	content, contentType, err := scrape.Encode(ctx, h.Metrics, r.Query().Get("format"))
	return route.Answer{Body: route.NewBody(content, []string{contentType})}, err
}

// clientGC answers PUT and GET /v1/client/gc: the allocation is removed if it has ended. As in Nomad, one that runs is
// left alone, and there is no body.
func (h *handlers) clientGC(ctx context.Context, r *route.Request) (route.Answer, error) {
	if err := h.checkNodeID(r.Query().Get("node_id")); err != nil {
		return route.Answer{}, err
	}
	return route.Answer{Body: route.NewBody(nil, route.JSONType)}, r.Collect(ctx)
}
