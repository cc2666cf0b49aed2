package handlers

import (
	"context"
	"runtime"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// agentHealth answers GET /v1/agent/health: ?type=client or ?type=server leaves the other out. A process that answers is healthy.
func (a *API) agentHealth(_ context.Context, r *request) (answer, error) {
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	well := &api.AgentHealth{Ok: true, Message: "ok"}
	switch part := query.Get("type"); part {
	case "":
		return respond(api.AgentHealthResponse{Client: well, Server: well})
	case "client":
		return respond(api.AgentHealthResponse{Client: well})
	case "server":
		return respond(api.AgentHealthResponse{Server: well})
	default:
		return answer{}, invalid("type must be client or server, not %s", clip(part))
	}
}

// The place in a cluster that this process claims.
const (
	// leaderAddress is the address of a Nomad server on the same machine. Nothing listens there, but clients take an empty leader for a
	// cluster without one.
	leaderAddress = "127.0.0.1:4647"
	agentAddress  = "127.0.0.1"
	serfPort      = 4648 // Nomad's default
	// protocolVersion and the following are those of Nomad's members.
	protocolVersion = 2
	protocolMin     = 1
	protocolMax     = 5
	delegateMin     = 2
	delegateMax     = 5
	delegateVersion = 4
	// nodePool is Nomad's for a machine that names none.
	nodePool = "default"
	// datacenter is Nomad's default.
	datacenter = "dc1"
)

// agentSelf answers GET /v1/agent/self.
func (a *API) agentSelf(context.Context, *request) (answer, error) {
	return respond(api.AgentSelf{Member: a.config.Agent.member(), Stats: a.config.Agent.stats(), Config: a.config.Agent.settings()})
}

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
		ProtocolMin: protocolMin, ProtocolMax: protocolMax, ProtocolCur: protocolVersion,
		DelegateMin: delegateMin, DelegateMax: delegateMax, DelegateCur: delegateVersion,
	}
}

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

// settings returns what clients look at: the place, Nomad's version, and that tokens are needed.
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
	}
}

// agentMembers answers GET /v1/agent/members: this process alone.
func (a *API) agentMembers(context.Context, *request) (answer, error) {
	agent := &a.config.Agent
	member := agent.member()
	return respond(api.ServerMembers{
		ServerName: agent.NodeName, ServerRegion: agent.Region, ServerDC: agent.Datacenter, Members: []*api.AgentMember{&member},
	})
}

// agentServers answers GET /v1/agent/servers: the servers that a Nomad client would know.
func (a *API) agentServers(context.Context, *request) (answer, error) {
	return respond([]string{leaderAddress})
}
