package main

import (
	"bytes"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
)

// endsAlloc are the calls that end the allocation.
var endsAlloc = map[string]bool{
	"Allocations.Stop": true, "Jobs.Deregister": true, "Jobs.DeregisterOpts": true,
}

// Why calls are not answered, for several rows.
const (
	noACL        = "no ACL policies, roles or stored tokens: identities say who calls, and a policy file what it may do"
	noCluster    = "no cluster: no servers, scheduler or Raft"
	noKeyring    = "signing keys are managed on the machine, with `taskapi keyring`"
	noVolumes    = "volumes are declared in the settings; no plugins"
	noPools      = "the pools are all and default"
	noEnterprise = "Nomad Enterprise"
	oneMachine   = "the machine runs what it is given: it can't be drained, excluded or purged"
	noPolicies   = "there is no autoscaler"
	operatorOnly = "the operator's, whatever a policy says"
	byPolicy     = "a policy may give a task the machine and the agent: `node` and `agent`"
)

// sdkTable is every call of the SDK and what it gets: works, a status, an error of the SDK's own, or local for what
// makes no request.
var sdkTable = []sdkCalls{
	{"Allocations", "Checks Info List PrefixList Restart RestartAllTasks Services Signal Stats Stop GetPauseState " +
		"SetPauseState",
		works, works, ""},
	{"Allocations", "Exec", works, "403", "a policy may give a task alloc-exec"},
	{"Allocations", "GC", "409", "409", "of one that runs; an ended one is removed"},
	{"AllocFS", "Cat List Logs ReadAt Stat Stream", works, works, ""},
	{"EventStream", "Stream", works, works, ""},

	{"Deployments", "Allocations Info List PrefixList", works, works, ""},
	{"Deployments", "Fail", works, "403", "the allocation runs on"},
	{"Deployments", "SetAllocHealth", "400", "403", "of a deployment that is over"},
	{"Deployments", "PromoteAll PromoteGroups", "400", "403", "there are no canaries"},
	{"Deployments", "Pause Unblock", "501", "501",
		"one allocation in one region: no steps to pause between, no other region"},
	{"Jobs", "Allocations Deployments Deregister DeregisterOpts Evaluations Info LatestDeployment List ListOptions " +
		"PrefixList ScaleStatus " +
		"Summary Versions VersionsOpts", works, works, ""},
	{"Jobs", "Submission", works, "403", "the text may hold passwords; who has alloc-exec reads it"},
	{"Jobs", "EnforceRegister ForceEvaluate ParseHCL ParseHCLOpts Plan PlanOpts Register RegisterOpts Revert Validate",
		works, "403",
		"another version of the job is the operator's to give"},
	{"Jobs", "EvaluateWithOpts", works, "403", "501 with ForceReschedule"},
	{"Jobs", "ActionExec", works, "403", "a policy may give a task alloc-exec"},
	{"Jobs", "VersionByTag", sdkError, sdkError, "versions have no tags: none is found"},
	{"Jobs", "Dispatch DispatchOpts PeriodicForce", "400", "403",
		"of a job that is neither parameterized nor periodic; of one that is, they start a child"},
	{"Jobs", "Scale ScaleWithRequest", "501", "403", "works on the socket of `taskapi agent`"},
	{"Jobs", "Services", works, works, ""},
	{"Jobs", "Stable TagVersion TagVersionOpts UntagVersion", "501", "501",
		"versions are neither marked stable nor tagged"},

	{"Evaluations", "Allocations Count Info List PrefixList", works, works, ""},
	{"Evaluations", "Delete DeleteOpts", "501", "501", "the latest are kept, and go by themselves"},

	{"Namespaces", "Info List PrefixList", works, works, "that of the job"},
	{"Namespaces", "Delete Register", "501", "501",
		"a namespace comes with its jobs: name it in a job file"},
	{"Search", "FuzzySearch PrefixSearch", works, works, "what the caller may see"},
	{"Regions", "List", works, works, ""},
	{"Status", "Leader Peers RegionLeader", works, works, ""},

	{"Nodes", "Allocations Info List PrefixList PrefixListOpts Stats", works, "403", byPolicy},
	{"Nodes.Meta", "Apply Read", works, "403", byPolicy},
	{"Nodes", "MonitorDrain", works, works,
		"its channel says that there is no drain, or that the node is not a task's to see"},
	{"Nodes", "GC", works, "403", "removes the allocation if it has ended"},
	{"Nodes", "GcAlloc", "409", "409", "of one that runs; an ended one is removed"},
	{"Nodes", "CSIVolumes", works, works, "none"},
	{"Nodes", "ForceEvaluate Purge ToggleEligibility UpdateDrain UpdateDrainOpts", "501", "501", oneMachine},
	{"Nodes.Identity", "Get Renew", "501", "501", "no node identities: the machine's users decide who may use a socket"},

	{"Agent", "Datacenter Health NodeName Region Self Servers", works, works, ""},
	{"Agent", "Members MembersOpts Monitor", works, "403", byPolicy},
	{"Agent", "GetSchedulerWorkerConfig GetSchedulerWorkersInfo", works, works, "there are no workers"},
	{"Agent", "ForceLeave ForceLeaveWithOptions Join SetSchedulerWorkerConfig SetServers", "501", "501", noCluster},
	{"Agent", "CPUProfile Host Lookup MonitorExport Trace", "501", "501",
		"the agent is looked at by its log, `Monitor` and metrics"},
	{"Agent", "InstallKey ListKeys RemoveKey UseKey", "501", "501", noKeyring},
	{"Agent", "Reload", "501", "501", "settings are read at the start"},
	{"Operator", "Metrics MetricsSummary", works, "403", operatorOnly},
	{"Operator", "AutopilotCASConfiguration AutopilotGetConfiguration AutopilotServerHealth AutopilotSetConfiguration " +
		"RaftGetConfiguration " +
		"RaftRemovePeerByAddress RaftRemovePeerByID RaftTransferLeadershipByAddress RaftTransferLeadershipByID " +
		"SchedulerCASConfiguration SchedulerSetConfiguration Snapshot SnapshotRestore Utilization",
		"501", "501", noCluster},
	{"Operator", "SchedulerGetConfiguration UpgradeCheckVaultWorkloadIdentity", works, "403",
		"no algorithm and no preemption; no job lacks an identity for Vault"},
	{"Operator", "LicenseGet", sdkError, "403", noEnterprise},
	{"Operator", "ApplyLicense LicensePut", "501", "501", noEnterprise},
	{"System", "GarbageCollect ReconcileSummaries", works, "403", operatorOnly},
	{"Keyring", "Delete List Rotate", "501", "501", noKeyring},

	{"ACLTokens", "List Self", works, "403", "a task's token is no ACL token; GET /v1/acl/whoami has its claims"},
	{"ACLTokens", "Info", "404", "403", "of another token than the operator's, which works"},
	{"ACLTokens", "Bootstrap BootstrapOpts Create Delete ExchangeOneTimeToken Update Upload UpsertOneTimeToken",
		"501", "501", noACL},
	{"ACLPolicies", "List Self", works, works, "none"},
	{"ACLPolicies", "Info", "404", "404", "none"},
	{"ACLPolicies", "Delete Upsert", "501", "501", noACL},
	{"ACLRoles", "List", works, works, "none"},
	{"ACLRoles", "Get GetByName", "404", "404", "none"},
	{"ACLRoles", "Create Delete Update", "501", "501", noACL},
	{"ACLAuth", "CompleteAuth GetAuthURL Login", "501", "501", noACL},
	{"ACLOIDC", "CompleteAuth GetAuthURL Login", noRequest, noRequest,
		"the SDK panics: this client of its lacks a connection; ACLAuth has the same calls"},
	{"ACLAuthMethods", "List", works, works, "none"},
	{"ACLAuthMethods", "Get", "404", "404", "none"},
	{"ACLAuthMethods", "Create Delete Update", "501", "501", noACL},
	{"ACLBindingRules", "List", works, works, "none"},
	{"ACLBindingRules", "Get", "404", "404", "none"},
	{"ACLBindingRules", "Create Delete Update", "501", "501", noACL},
	{"ACLIdentity", "CreateClientIntroductionToken", "501", "501", noACL},

	{"Variables", "Create Update CheckedUpdate CheckedCreate CheckedDelete AcquireLock RenewLock ReleaseLock", works,
		"403",
		"a policy may give a task variables-write"},
	{"Variables", "GetItems GetVariableItems List Peek PrefixList Read", works, works,
		"a task: of its job, its group and itself"},
	{"Variables", "Delete", works, "403", "a policy may give a task variables-write"},
	{"Services", "Get List", works, works, "a task sees the services of its namespace"},
	{"Services", "Delete", "404", "403", "404 for a registration that there is not"},
	{"Scaling", "ListPolicies", works, works, "none"},
	{"Scaling", "GetPolicy", "404", "404", noPolicies},
	{"NodePools", "List PrefixList", works, works, "all and default"},
	{"NodePools", "Info", "404", "404", "of another pool than all and default, which work"},
	{"NodePools", "ListJobs", works, works, "of another pool: none"},
	{"NodePools", "ListNodes", works, "403", byPolicy},
	{"NodePools", "Delete Register", "501", "501", noPools},
	{"CSIPlugins", "List", works, works, "none"},
	{"CSIPlugins", "Info", "404", "404", noVolumes},
	{"CSIVolumes", "List PluginList", works, works, "none"},
	{"CSIVolumes", "Info", "404", "404", noVolumes},
	{"CSIVolumes", "Create CreateOpts CreateSnapshot Delete DeleteOpts DeleteSnapshot Deregister Detach " +
		"ListExternal ListSnapshots " +
		"ListSnapshotsOpts Register RegisterOpts", "501", "501", noVolumes},
	{"HostVolumes", "List", works, works, "none"},
	{"HostVolumes", "Get", "404", "404", noVolumes},
	{"HostVolumes", "Create Delete Register", "501", "501", noVolumes},
	{"TaskGroupHostVolumeClaims", "List", works, works, "none"},
	{"TaskGroupHostVolumeClaims", "Delete", "501", "501", noVolumes},
	{"Quotas", "Delete Info List ListUsage PrefixList PrefixListUsage Register Usage", "501", "501", noEnterprise},
	{"Recommendations", "Apply Delete Info List Upsert", "501", "501", noEnterprise},
	{"SentinelPolicies", "Delete Info List Upsert", "501", "501", noEnterprise},

	{"Raw", "Query Response", works, works, "what its path gets"},
	{"Raw", "Delete Do Write", noRequest, noRequest, "what its path gets"},
	{"", "GetNodeClient GetNodeClientWithTimeout", sdkError, "403",
		"the node has no HTTP address: clients stay on the socket"},
	{"", "Address Close Locks NewLockLeaser SetNamespace SetRegion SetSecretID", noRequest, noRequest, ""},
}

// sdkArgumentsOf returns the arguments that a call needs to make sense, by its name. The SDK changes some of them, so
// each test has its own.
func sdkArgumentsOf(alloc *api.Allocation, job *api.Job, log string) map[string][]any {
	variable, checked := sdkVariableAt("nomad/jobs/demo"), sdkVariableAt("nomad/jobs/demo/checked")
	lock := &api.Variable{Path: "nomad/jobs/demo/lock", Lock: &api.VariableLock{ID: "x", TTL: "15s"}}
	volume := &api.CSIVolume{ID: "x", Name: "x"}
	node, eval := alloc.NodeID, alloc.EvalID
	const id = "demo"
	hcl := "job \"parsed\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n    }\n  }\n}\n"
	return map[string][]any{
		"Allocations.Checks": {alloc.ID}, "Allocations.Info": {alloc.ID}, "Allocations.Services": {alloc.ID},
		"Allocations.PrefixList":    {alloc.ID[:8]},
		"Allocations.Exec":          {nil, nil, "server", nil, []string{"/bin/true"}, nil, nil, new(bytes.Buffer)},
		"Allocations.GetPauseState": {nil, nil, "server"}, "Allocations.SetPauseState": {nil, nil, "server", "scheduled"},
		"Allocations.Restart": {nil, "other"}, "Allocations.Signal": {nil, nil, "other", "SIGCONT"},
		"AllocFS.Cat": {nil, log}, "AllocFS.List": {nil, "/"}, "AllocFS.ReadAt": {nil, log, int64(0),
			int64(1)}, "AllocFS.Stat": {nil, log},
		"AllocFS.Stream": {nil, log, "start"}, "AllocFS.Logs": {nil, nil, "server", "stdout", "start"},
		"EventStream.Stream": {nil, map[api.Topic][]string{api.TopicAllocation: {"*"}}},

		"Jobs.Allocations": {id}, "Jobs.Deployments": {id}, "Jobs.Deregister": {id}, "Jobs.DeregisterOpts": {id},
		"Jobs.Evaluations": {id},
		"Jobs.Info":        {id}, "Jobs.LatestDeployment": {id}, "Jobs.ScaleStatus": {id}, "Jobs.Submission": {id,
			1}, "Jobs.Summary": {id},
		"Jobs.Versions": {id, true}, "Jobs.VersionsOpts": {id, &api.VersionsOptions{Diffs: true}}, "Jobs.VersionByTag": {id,
			"x"},
		"Jobs.Services": {id}, "Jobs.ForceEvaluate": {id}, "Jobs.EvaluateWithOpts": {id}, "Jobs.ParseHCL": {hcl, true},
		"Jobs.ParseHCLOpts": {&api.JobsParseRequest{JobHCL: hcl}}, "Jobs.EnforceRegister": {job,
			*job.JobModifyIndex}, "Jobs.Revert": {id, uint64(0)},
		"Jobs.ActionExec": {nil, nil, id, "other", false, nil, "greet", nil, nil, new(bytes.Buffer)},
		"Jobs.Scale": {id, "web", new(2),
			"x"}, "Jobs.Dispatch": {id}, "Jobs.PeriodicForce": {id}, "Jobs.DispatchOpts": {&api.DispatchOptions{JobID: id}},

		"Evaluations.Allocations": {eval}, "Evaluations.Info": {eval}, "Evaluations.PrefixList": {eval[:8]},
		"Deployments.Allocations": {alloc.DeploymentID}, "Deployments.Info": {alloc.DeploymentID},
		"Deployments.PrefixList": {"ab"},
		"Deployments.Fail":       {alloc.DeploymentID}, "Deployments.SetAllocHealth": {alloc.DeploymentID,
			[]string{alloc.ID}},
		"Deployments.PromoteAll": {alloc.DeploymentID}, "Deployments.PromoteGroups": {alloc.DeploymentID},
		"Namespaces.Info": {"default"}, "Search.FuzzySearch": {"demo", contexts.All}, "Search.PrefixSearch": {"de",
			contexts.Jobs},
		"Status.RegionLeader": {"global"},

		"Nodes.Allocations": {node}, "Nodes.Info": {node}, "Nodes.PrefixList": {node[:8]}, "Nodes.PrefixListOpts": {node[:8]},
		"Nodes.Stats": {node},
		"Nodes.GC":    {node}, "Nodes.GcAlloc": {alloc.ID}, "Nodes.MonitorDrain": {nil, node},
		"Nodes.Meta.Apply": {&api.NodeMetaApplyRequest{NodeID: node,
			Meta: map[string]*string{"rack": new("r1")}}}, "Nodes.Meta.Read": {node},
		"GetNodeClient": {node}, "GetNodeClientWithTimeout": {node, time.Second},
		"Agent.Lookup": {"heap"}, "Agent.InstallKey": {"x"}, "Agent.SetServers": {[]string{"127.0.0.1:4647"}},
		"ACLTokens.Upload": {&api.ACLToken{AccessorID: alloc.ID, SecretID: alloc.ID,
			Type: "client"}}, "ACLTokens.Create": {&api.ACLToken{Type: "client"}},
		"ACLTokens.Update":   {&api.ACLToken{AccessorID: alloc.ID}},
		"ACLPolicies.Upsert": {&api.ACLPolicy{Name: "x"}}, "ACLRoles.Update": {&api.ACLRole{ID: alloc.ID}},
		"ACLAuthMethods.Create": {&api.ACLAuthMethod{Name: "x"}}, "ACLAuthMethods.Update": {&api.ACLAuthMethod{Name: "x"}},
		"ACLBindingRules.Update": {&api.ACLBindingRule{ID: alloc.ID}},
		"Variables.Create":       {variable}, "Variables.Update": {variable}, "Variables.CheckedUpdate": {checked},
		"Variables.CheckedCreate": {sdkVariableAt("nomad/jobs/demo/new")}, "Variables.CheckedDelete": {"nomad/jobs/demo/none",
			uint64(0)},
		"Variables.AcquireLock": {lock}, "Variables.RenewLock": {lock}, "Variables.ReleaseLock": {lock},
		"Variables.GetItems": {variable.Path}, "Variables.GetVariableItems": {variable.Path},
		"Variables.Peek": {variable.Path},
		"Variables.Read": {variable.Path}, "Variables.PrefixList": {"nomad/"}, "Variables.Delete": {variable.Path},
		"Quotas.Register": {&api.QuotaSpec{Name: "x"}}, "SentinelPolicies.Upsert": {&api.SentinelPolicy{Name: "x"}},
		"CSIVolumes.Create": {volume}, "CSIVolumes.Register": {volume},
		"CSIVolumes.CreateOpts":   {&api.CSIVolumeCreateRequest{Volumes: []*api.CSIVolume{volume}}},
		"CSIVolumes.RegisterOpts": {&api.CSIVolumeRegisterRequest{Volumes: []*api.CSIVolume{volume}}},
		"Keyring.Delete":          {&api.KeyringDeleteOptions{KeyID: alloc.ID}},
		"HostVolumes.Delete":      {&api.HostVolumeDeleteRequest{ID: alloc.ID}},
		"NodePools.Register":      {&api.NodePool{Name: "x"}},
		"Namespaces.Register":     {&api.Namespace{Name: "x"}},
		"Raw.Query":               {"/v1/regions", new([]string)}, "Raw.Response": {"/v1/regions"},
	}
}

func sdkVariableAt(path string) *api.Variable {
	return &api.Variable{Path: path, Items: api.VariableItems{"a": "b"}}
}
