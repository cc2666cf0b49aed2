package jobdiff

import (
	"reflect"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// This file says which changes a running allocation applies in place, and which are destructive. It follows what Nomad
// updates in place, but for meta, which Nomad gives to new processes alone. A test compares it with the SDK: a field
// that is missing here fails the test, and counts as destructive.

// verdict says what the running allocation needs when a field differs.
type verdict uint8

const (
	isDestructive verdict = iota // new processes, ports or files; the default
	isInPlace                    // nothing: it applies the difference
	isIgnored                    // nothing: the difference does not count, and means says why
)

// rule judges and describes a difference in a field, or in one of the fields of a block.
type rule struct {
	verdict verdict
	means   string // the second half of the text; for an ignored field, the reason
	secret  bool   // texts in it may be secrets, and are never shown
	process bool   // destructive, but a new process of the task alone would do
	// The block's fields have a table of their own; verdict and means apply to the whole block, added or removed.
	table bool
}

// open returns the rule for a field whose texts are no secrets.
func (r rule) open() rule {
	r.secret = false
	return r
}

// byTable returns the rule for blocks whose fields have rows of their own.
func (r rule) byTable() rule {
	r.table = true
	return r
}

func inPlace(means string) rule     { return rule{verdict: isInPlace, means: means, secret: true} }
func destructive(means string) rule { return rule{verdict: isDestructive, means: means, secret: true} }
func ignored(why string) rule       { return rule{verdict: isIgnored, means: why} }

// byProcess returns the rule for a field of a task that only the task's own process has.
func (r rule) byProcess() rule {
	r.process = true
	return r
}

// What a difference means.
const (
	newProcess    = "processes get it at their start; needs new processes"
	newIdentity   = "tokens and files are made from it at the start; needs new processes"
	newPlace      = "set at creation; needs new processes of all tasks"
	otherJob      = "changes the job's identity; needs a new allocation"
	laterChildren = "later children have it"
	notHere       = "can't be applied to a running allocation; needs new processes of all tasks"

	atOnce      = ""
	atNextStart = "applies from the task's next start"
	atNextKill  = "applies from the next stop or restart"
	atNextStop  = "applies from the next stop; a restart does not wait for it"
	atNextExit  = "applies from the task's next exit"
	metaMeans   = "checks and services get it at once, a process at its next start"
	noMeaning   = "has no effect on one machine"

	bookkeeping = "kept by a server"
)

var unknown = destructive("unknown field; needs new processes of all tasks")

type row struct {
	rule   rule
	fields string
}

var tables = sync.OnceValue(func() map[reflect.Type]map[string]rule {
	all := map[reflect.Type]map[string]rule{}
	for of, rows := range map[reflect.Type][]row{
		reflect.TypeFor[api.Job]():          jobRows,
		reflect.TypeFor[api.TaskGroup]():    groupRows,
		reflect.TypeFor[api.Task]():         taskRows,
		reflect.TypeFor[api.LogConfig]():    logRows,
		reflect.TypeFor[api.Service]():      serviceRows,
		reflect.TypeFor[api.ServiceCheck](): checkRows,
	} {
		all[of] = map[string]rule{}
		for _, r := range rows {
			for name := range strings.FieldsSeq(r.fields) {
				all[of][name] = r.rule
			}
		}
	}
	return all
})

var jobRows = []row{
	{destructive(otherJob).open(), "Region Namespace ID ParentID"},
	{destructive(newProcess).open(), "Name"},
	{destructive("decides when tasks run again; needs new processes of all tasks").open(), "Type"},
	{inPlace(noMeaning), "Priority AllAtOnce UI"},
	{inPlace(noMeaning).open(), "Datacenters NodePool Constraints Affinities Spreads"},
	{ignored("the groups have taken them over"), "Reschedule Migrate"},
	{inPlace("each group has an update block of its own").open(), "Update"},
	{inPlace(metaMeans), "Meta"},
	{destructive("to end the allocation, stop it"), "Stop"},
	{destructive(notHere), "Multiregion Periodic ParameterizedJob"},
	{destructive(otherJob), "Dispatched"},
	{destructive(newProcess), "Payload"},
	{destructive(newIdentity), "ConsulNamespace VaultNamespace"},
	{ignored("groups are compared by name: the one that runs, and the others"), "TaskGroups"},
	{ignored("it tells requests apart, not jobs"), "DispatchIdempotencyToken"},
	{ignored("it is who submitted the job"), "NomadTokenID"},
	{ignored(bookkeeping), `Status StatusDescription Stable Version VersionTag SubmitTime CreateIndex
		ModifyIndex JobModifyIndex`},
}

var groupRows = []row{
	{ignored("groups are compared by name"), "Name"},
	{destructive(newPlace).byTable(), "Tasks"},
	{inPlace(atOnce).byTable(), "Services"},
	{inPlace(metaMeans), "Meta"},
	{inPlace(atNextExit).open(), "RestartPolicy"},
	{inPlace(atNextStop), "ShutdownDelay"},
	{inPlace("the allocation's health is judged by it").open(), "Update"},
	{inPlace("update --all starts and stops allocations"), "Count"},
	{inPlace(noMeaning).open(), "Constraints Affinities Spreads ReschedulePolicy Migrate Disconnect"},
	{inPlace(noMeaning), `Scaling StopAfterClientDisconnect MaxClientDisconnect
		PreventRescheduleOnLost`},
	{inPlace(atOnce), "MaxRunDuration"},
	{destructive("ports are granted at creation; needs new processes of all tasks").open(), "Networks"},
	{destructive(newPlace).open(), "Volumes"},
	{destructive("decides the allocation's directory; needs new processes of all tasks"), "EphemeralDisk"},
	{destructive(newIdentity).open(), "Consul"},
}

var taskRows = []row{
	{ignored("tasks are compared by name"), "Name"},
	// A process reads its resources in its environment.
	{destructive(newProcess).open(), "Driver User Resources VolumeMounts CSIPluginConfig Kind"},
	{destructive(newProcess).byProcess(), "Config Env Templates Artifacts"},
	{destructive(newProcess), "Secrets DispatchPayload"},
	{destructive("decides the order of the tasks; needs new processes of all tasks").open(), "Lifecycle"},
	{inPlace(atOnce).open(), "Schedule"},
	{destructive(newIdentity), "Vault"},
	{destructive(newIdentity).open(), "Consul Identity Identities"},
	{inPlace(atOnce).byTable(), "Services"},
	{inPlace(metaMeans), "Meta"},
	{inPlace(atNextExit).open(), "RestartPolicy"},
	{inPlace(atNextKill), "KillTimeout"},
	{inPlace(atNextKill).open(), "KillSignal"},
	{inPlace(atNextStop), "ShutdownDelay"},
	{inPlace("applies from the task's end, at once if it has ended"), "Leader"},
	{destructive(newProcess).byTable(), "LogConfig"},
	{inPlace(atOnce), "Actions"},
	{inPlace(noMeaning).open(), "Constraints Affinities"},
	{inPlace(noMeaning), "ScalingPolicies"},
}

// logRows: a rotator is made for each process, and where the output goes is settled with it. A task that somebody
// follows can't start or stop writing logs.
var logRows = []row{
	{inPlace(atNextStart), "MaxFiles MaxFileSizeMB"},
	{destructive(newProcess), "Disabled Enabled"},
}

var serviceRows = []row{
	{ignored("services are compared by name"), "Name"},
	{inPlace(atOnce).byTable(), "Checks"},
	{inPlace(atOnce).open(), "Provider PortLabel AddressMode Address TaskName OnUpdate Cluster Kind"},
	// Proxies take settings from tags, passwords among them.
	{inPlace(atOnce), `CheckRestart Tags CanaryTags Meta CanaryMeta EnableTagOverride TaggedAddresses
		Weights`},
	{destructive("a service mesh adds tasks; needs new processes of all tasks"), "Connect"},
	{destructive(newIdentity).open(), "Identity"},
}

var checkRows = []row{
	{ignored("checks are compared by name"), "Name"},
	{inPlace(atOnce).open(), `Type PortLabel AddressMode Advertise Protocol Method Command TaskName
		TLSServerName OnUpdate GRPCService`},
	// A query in the path may hold a token.
	{inPlace(atOnce), `Interval Timeout Path Header Body Args TLSSkipVerify CheckRestart
		SuccessBeforePassing FailuresBeforeCritical FailuresBeforeWarning GRPCUseTLS
		Expose Notes`},
	{inPlace("applies when the check is next registered").open(), "InitialStatus"},
}
