package jobdiff

import (
	"reflect"

	"github.com/hashicorp/nomad/api"
)

// This file is the table of which changes apply to a running allocation in place, and which are destructive. It follows what Nomad updates in place, but for
// meta, which Nomad gives to new processes alone. A test holds it against the SDK: a field that it lacks fails there, and counts as
// destructive here.

// verdict is what a difference in a field means for the running allocation.
type verdict uint8

const (
	isDestructive verdict = iota // it needs new processes, ports or files; the default
	isInPlace                    // the allocation goes on with it
	isIgnored                    // it does not count as a difference; means says why
)

// rule judges and describes a difference in a field, or in one of the fields of a block.
type rule struct {
	verdict verdict
	means   string // the second half of the text; for an ignored field, the reason
	secret  bool   // texts in it may be secrets, and are never shown
	table   bool   // the block's fields have a table of their own; verdict and means apply to the whole block, added or removed
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

// What a difference means.
const (
	newProcess  = "processes get it at their start; needs new processes"
	newIdentity = "tokens and files are made from it at the start; needs new processes"
	newPlace    = "set at creation; needs a new allocation"
	otherJob    = "changes the job's identity; needs a new allocation"
	notHere     = "can't be applied to a running allocation; needs a new one"

	atOnce      = ""
	atNextStart = "applies from the task's next start"
	atNextKill  = "applies from the next stop or restart"
	atNextStop  = "applies from the next stop; a restart does not wait for it"
	atNextExit  = "applies from the task's next exit"
	metaMeans   = "checks and services get it at once, a process at its next start"
	noMeaning   = "has no effect on one machine"

	bookkeeping = "kept by a server"
)

// unknown is the rule for a field that no table has.
var unknown = destructive("unknown field; needs a new allocation")

// tables are the rows by struct, by the names of fields.
var tables = map[reflect.Type]map[string]rule{
	reflect.TypeFor[api.Job]():          jobTable,
	reflect.TypeFor[api.TaskGroup]():    groupTable,
	reflect.TypeFor[api.Task]():         taskTable,
	reflect.TypeFor[api.LogConfig]():    logTable,
	reflect.TypeFor[api.Service]():      serviceTable,
	reflect.TypeFor[api.ServiceCheck](): checkTable,
}

var jobTable = map[string]rule{
	"Region":    destructive(otherJob).open(),
	"Namespace": destructive(otherJob).open(),
	"ID":        destructive(otherJob).open(),
	"Name":      destructive(newProcess).open(), // NOMAD_JOB_NAME
	"Type":      destructive("decides when tasks run again; needs a new allocation").open(),

	"Priority":    inPlace(noMeaning),
	"AllAtOnce":   inPlace(noMeaning),
	"Datacenters": inPlace(noMeaning).open(),
	"NodePool":    inPlace(noMeaning).open(),
	"Constraints": inPlace(noMeaning).open(),
	"Affinities":  inPlace(noMeaning).open(),
	"Spreads":     inPlace(noMeaning).open(),
	"Update":      inPlace("each group has an update block of its own").open(),
	"Reschedule":  inPlace(noMeaning).open(),
	"Migrate":     inPlace(noMeaning).open(),
	"Meta":        inPlace(metaMeans),
	"UI":          inPlace(noMeaning),

	"Stop":             destructive("to end the allocation, stop it"),
	"Multiregion":      destructive(notHere),
	"Periodic":         destructive(notHere),
	"ParameterizedJob": destructive(notHere),
	"ParentID":         destructive(otherJob).open(), // NOMAD_JOB_PARENT_ID
	"Dispatched":       destructive(otherJob),
	"Payload":          destructive(newProcess),
	"ConsulNamespace":  destructive(newIdentity),
	"VaultNamespace":   destructive(newIdentity),

	"TaskGroups":               ignored("groups are compared by name: the one that runs, and the others"),
	"DispatchIdempotencyToken": ignored("it tells requests apart, not jobs"),
	"NomadTokenID":             ignored("it is who submitted the job"),
	"Status":                   ignored(bookkeeping),
	"StatusDescription":        ignored(bookkeeping),
	"Stable":                   ignored(bookkeeping),
	"Version":                  ignored(bookkeeping),
	"VersionTag":               ignored(bookkeeping),
	"SubmitTime":               ignored(bookkeeping),
	"CreateIndex":              ignored(bookkeeping),
	"ModifyIndex":              ignored(bookkeeping),
	"JobModifyIndex":           ignored(bookkeeping),
}

var groupTable = map[string]rule{
	"Name":  ignored("groups are compared by name"),
	"Tasks": destructive(newPlace).byTable(),

	"Services":      inPlace(atOnce).byTable(),
	"Meta":          inPlace(metaMeans),
	"RestartPolicy": inPlace(atNextExit).open(),
	"ShutdownDelay": inPlace(atNextStop),
	"Update":        inPlace("the allocation's health is judged by it").open(),

	"Count":                     inPlace("one allocation runs here, whatever the count"),
	"Constraints":               inPlace(noMeaning).open(),
	"Affinities":                inPlace(noMeaning).open(),
	"Spreads":                   inPlace(noMeaning).open(),
	"ReschedulePolicy":          inPlace(noMeaning).open(),
	"Migrate":                   inPlace(noMeaning).open(),
	"Scaling":                   inPlace(noMeaning),
	"Disconnect":                inPlace(noMeaning).open(),
	"StopAfterClientDisconnect": inPlace(noMeaning),
	"MaxClientDisconnect":       inPlace(noMeaning),
	"PreventRescheduleOnLost":   inPlace(noMeaning),
	"MaxRunDuration":            inPlace(atOnce),

	"Networks":      destructive("ports are granted at creation; needs a new allocation").open(),
	"Volumes":       destructive(newPlace).open(),
	"EphemeralDisk": destructive("decides the allocation's directory; needs a new allocation"),
	"Consul":        destructive(newIdentity).open(),
}

var taskTable = map[string]rule{
	"Name": ignored("tasks are compared by name"),

	"Driver":          destructive(newProcess).open(),
	"User":            destructive(newProcess).open(),
	"Config":          destructive(newProcess),
	"Env":             destructive(newProcess),
	"Resources":       destructive(newProcess).open(), // a process reads its limits in its environment
	"Lifecycle":       destructive("decides the order of the tasks; needs a new allocation").open(),
	"Artifacts":       destructive(newProcess),
	"Templates":       destructive(newProcess),
	"Secrets":         destructive(newProcess),
	"DispatchPayload": destructive(newProcess),
	"VolumeMounts":    destructive(newProcess).open(),
	"CSIPluginConfig": destructive(newProcess).open(),
	"Kind":            destructive(newProcess).open(),
	"Schedule":        destructive(notHere).open(),
	"Vault":           destructive(newIdentity),
	"Consul":          destructive(newIdentity).open(),
	"Identity":        destructive(newIdentity).open(),
	"Identities":      destructive(newIdentity).open(),

	"Services":        inPlace(atOnce).byTable(),
	"Meta":            inPlace(metaMeans),
	"RestartPolicy":   inPlace(atNextExit).open(),
	"KillTimeout":     inPlace(atNextKill),
	"KillSignal":      inPlace(atNextKill).open(),
	"ShutdownDelay":   inPlace(atNextStop),
	"Leader":          inPlace("applies from the task's end, at once if it has ended"),
	"LogConfig":       destructive(newProcess).byTable(),
	"Actions":         inPlace(atOnce),
	"Constraints":     inPlace(noMeaning).open(),
	"Affinities":      inPlace(noMeaning).open(),
	"ScalingPolicies": inPlace(noMeaning),
}

// logTable: a rotator is made for each process, and where its output goes is settled with it. Whether there are logs at all can't
// change under a task that somebody follows.
var logTable = map[string]rule{
	"MaxFiles":      inPlace(atNextStart),
	"MaxFileSizeMB": inPlace(atNextStart),
	"Disabled":      destructive(newProcess),
	"Enabled":       destructive(newProcess),
}

var serviceTable = map[string]rule{
	"Name":              ignored("services are compared by name"),
	"Checks":            inPlace(atOnce).byTable(),
	"Provider":          inPlace(atOnce).open(),
	"PortLabel":         inPlace(atOnce).open(),
	"AddressMode":       inPlace(atOnce).open(),
	"Address":           inPlace(atOnce).open(),
	"TaskName":          inPlace(atOnce).open(),
	"OnUpdate":          inPlace(atOnce).open(),
	"CheckRestart":      inPlace(atOnce),
	"Tags":              inPlace(atOnce), // proxies take settings from tags, passwords among them
	"CanaryTags":        inPlace(atOnce),
	"Meta":              inPlace(atOnce),
	"CanaryMeta":        inPlace(atOnce),
	"EnableTagOverride": inPlace(atOnce),
	"TaggedAddresses":   inPlace(atOnce),
	"Weights":           inPlace(atOnce),
	"Cluster":           inPlace(atOnce).open(),
	"Kind":              inPlace(atOnce).open(),
	"Connect":           destructive("a service mesh adds tasks; needs a new allocation"),
	"Identity":          destructive(newIdentity).open(),
}

var checkTable = map[string]rule{
	"Name":                   ignored("checks are compared by name"),
	"Type":                   inPlace(atOnce).open(),
	"Interval":               inPlace(atOnce),
	"Timeout":                inPlace(atOnce),
	"PortLabel":              inPlace(atOnce).open(),
	"AddressMode":            inPlace(atOnce).open(),
	"Advertise":              inPlace(atOnce).open(),
	"Protocol":               inPlace(atOnce).open(),
	"Method":                 inPlace(atOnce).open(),
	"Path":                   inPlace(atOnce), // a query in it may hold a token
	"Header":                 inPlace(atOnce),
	"Body":                   inPlace(atOnce),
	"Command":                inPlace(atOnce).open(),
	"Args":                   inPlace(atOnce),
	"TaskName":               inPlace(atOnce).open(),
	"TLSServerName":          inPlace(atOnce).open(),
	"TLSSkipVerify":          inPlace(atOnce),
	"InitialStatus":          inPlace("applies when the check is next registered").open(),
	"OnUpdate":               inPlace(atOnce).open(),
	"CheckRestart":           inPlace(atOnce),
	"SuccessBeforePassing":   inPlace(atOnce),
	"FailuresBeforeCritical": inPlace(atOnce),
	"FailuresBeforeWarning":  inPlace(atOnce),
	"GRPCService":            inPlace(atOnce).open(),
	"GRPCUseTLS":             inPlace(atOnce),
	"Expose":                 inPlace(atOnce),
	"Notes":                  inPlace(atOnce),
}
