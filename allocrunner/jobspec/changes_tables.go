package jobspec

import (
	"reflect"

	"github.com/hashicorp/nomad/api"
)

// This file is the table of what a running allocation takes over and what it can't. It follows what Nomad updates in place, but for
// meta, which Nomad gives to new processes alone. A test holds it against the SDK: a field that it lacks fails there, and counts as
// destructive here.

// verdict is what a difference in a field means for the running allocation.
type verdict uint8

const (
	destructive verdict = iota // it needs new processes, ports or files; also what nobody has thought of
	inPlace                    // the allocation goes on with it
	ignored                    // it is no difference; means says why
)

// rule is what is to be said of a difference in a field, or in one of the fields of a block.
type rule struct {
	verdict verdict
	means   string // the second half of the text; of an ignored field, why
	secret  bool   // texts in it may be secrets, and are never shown
	table   bool   // a block whose fields have a table of their own; verdict and means are for the whole, added or removed
}

// open is the rule for a field whose texts are no secrets.
func (r rule) open() rule {
	r.secret = false
	return r
}

// byTable is the rule for blocks whose fields have rows of their own.
func (r rule) byTable() rule {
	r.table = true
	return r
}

func stays(means string) rule    { return rule{verdict: inPlace, means: means, secret: true} }
func destroys(means string) rule { return rule{verdict: destructive, means: means, secret: true} }
func ignores(why string) rule    { return rule{verdict: ignored, means: why} }

// What a difference means.
const (
	anew        = "the allocation has to begin anew"
	newProcess  = "a process gets it at its start, so " + anew
	newIdentity = "tokens and files are made of it at the start, so " + anew
	newPlace    = "the allocation has it from its beginning, so " + anew
	otherJob    = "that makes it another job than the one that runs"
	notHere     = "no running allocation can take it over, so " + anew

	atOnce      = ""
	atNextStart = "a task has it from its next start on"
	atNextKill  = "it counts from the next stop or restart on"
	atNextStop  = "it counts from the next stop on, a restart does not wait"
	atNextExit  = "it counts from the task's next exit on"
	metaMeans   = "checks and services have it at once, a process from its next start on"
	noMeaning   = "one machine has no use for it"

	bookkeeping = "a server counts or notes it"
)

// unknown is the rule for a field that no table has.
var unknown = destroys("nothing is known of this field here, so " + anew)

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
	"Region":    destroys(otherJob).open(),
	"Namespace": destroys(otherJob).open(),
	"ID":        destroys(otherJob).open(),
	"Name":      destroys(newProcess).open(), // NOMAD_JOB_NAME
	"Type":      destroys("when tasks run again depends on it from the first start on, so " + anew).open(),

	"Priority":    stays(noMeaning),
	"AllAtOnce":   stays(noMeaning),
	"Datacenters": stays(noMeaning).open(),
	"NodePool":    stays(noMeaning).open(),
	"Constraints": stays(noMeaning).open(),
	"Affinities":  stays(noMeaning).open(),
	"Spreads":     stays(noMeaning).open(),
	"Update":      stays("a group's own update block says what counts").open(),
	"Reschedule":  stays(noMeaning).open(),
	"Migrate":     stays(noMeaning).open(),
	"Meta":        stays(metaMeans),
	"UI":          stays(noMeaning),

	"Stop":             destroys("to end the allocation, stop it"),
	"Multiregion":      destroys(notHere),
	"Periodic":         destroys(notHere),
	"ParameterizedJob": destroys(notHere),
	"ParentID":         destroys(otherJob).open(), // NOMAD_JOB_PARENT_ID
	"Dispatched":       destroys(otherJob),
	"Payload":          destroys(newProcess),
	"ConsulNamespace":  destroys(newIdentity),
	"VaultNamespace":   destroys(newIdentity),

	"TaskGroups":               ignores("groups are compared by name: the one that runs, and the others"),
	"DispatchIdempotencyToken": ignores("it tells requests apart, not jobs"),
	"NomadTokenID":             ignores("it is who submitted the job"),
	"Status":                   ignores(bookkeeping),
	"StatusDescription":        ignores(bookkeeping),
	"Stable":                   ignores(bookkeeping),
	"Version":                  ignores(bookkeeping),
	"VersionTag":               ignores(bookkeeping),
	"SubmitTime":               ignores(bookkeeping),
	"CreateIndex":              ignores(bookkeeping),
	"ModifyIndex":              ignores(bookkeeping),
	"JobModifyIndex":           ignores(bookkeeping),
}

var groupTable = map[string]rule{
	"Name":  ignores("groups are compared by name"),
	"Tasks": destroys(newPlace).byTable(),

	"Services":      stays(atOnce).byTable(),
	"Meta":          stays(metaMeans),
	"RestartPolicy": stays(atNextExit).open(),
	"ShutdownDelay": stays(atNextStop),
	"Update":        stays("the allocation's health is judged by it").open(),

	"Count":                     stays("one allocation runs here, whatever the count"),
	"Constraints":               stays(noMeaning).open(),
	"Affinities":                stays(noMeaning).open(),
	"Spreads":                   stays(noMeaning).open(),
	"ReschedulePolicy":          stays(noMeaning).open(),
	"Migrate":                   stays(noMeaning).open(),
	"Scaling":                   stays(noMeaning),
	"Disconnect":                stays(noMeaning).open(),
	"StopAfterClientDisconnect": stays(noMeaning),
	"MaxClientDisconnect":       stays(noMeaning),
	"PreventRescheduleOnLost":   stays(noMeaning),
	"MaxRunDuration":            stays(atOnce),

	"Networks":      destroys("ports are given to the allocation and its processes at the start, so " + anew).open(),
	"Volumes":       destroys(newPlace).open(),
	"EphemeralDisk": destroys("the allocation's directory is made by it, so " + anew),
	"Consul":        destroys(newIdentity).open(),
}

var taskTable = map[string]rule{
	"Name": ignores("tasks are compared by name"),

	"Driver":          destroys(newProcess).open(),
	"User":            destroys(newProcess).open(),
	"Config":          destroys(newProcess),
	"Env":             destroys(newProcess),
	"Resources":       destroys(newProcess).open(), // a process reads its limits in its environment
	"Lifecycle":       destroys("tasks are started in an order that it is part of, so " + anew).open(),
	"Artifacts":       destroys(newProcess),
	"Templates":       destroys(newProcess),
	"Secrets":         destroys(newProcess),
	"DispatchPayload": destroys(newProcess),
	"VolumeMounts":    destroys(newProcess).open(),
	"CSIPluginConfig": destroys(newProcess).open(),
	"Kind":            destroys(newProcess).open(),
	"Schedule":        destroys(notHere).open(),
	"Vault":           destroys(newIdentity),
	"Consul":          destroys(newIdentity).open(),
	"Identity":        destroys(newIdentity).open(),
	"Identities":      destroys(newIdentity).open(),

	"Services":        stays(atOnce).byTable(),
	"Meta":            stays(metaMeans),
	"RestartPolicy":   stays(atNextExit).open(),
	"KillTimeout":     stays(atNextKill),
	"KillSignal":      stays(atNextKill).open(),
	"ShutdownDelay":   stays(atNextStop),
	"Leader":          stays("it counts from the task's end on, at once if that is past"),
	"LogConfig":       destroys(newProcess).byTable(),
	"Actions":         stays(atOnce),
	"Constraints":     stays(noMeaning).open(),
	"Affinities":      stays(noMeaning).open(),
	"ScalingPolicies": stays(noMeaning),
}

// logTable: a rotator is made for each process, and where its output goes is settled with it. Whether there are logs at all can't
// change under a task that somebody follows.
var logTable = map[string]rule{
	"MaxFiles":      stays(atNextStart),
	"MaxFileSizeMB": stays(atNextStart),
	"Disabled":      destroys(newProcess),
	"Enabled":       destroys(newProcess),
}

var serviceTable = map[string]rule{
	"Name":              ignores("services are compared by name"),
	"Checks":            stays(atOnce).byTable(),
	"Provider":          stays(atOnce).open(),
	"PortLabel":         stays(atOnce).open(),
	"AddressMode":       stays(atOnce).open(),
	"Address":           stays(atOnce).open(),
	"TaskName":          stays(atOnce).open(),
	"OnUpdate":          stays(atOnce).open(),
	"CheckRestart":      stays(atOnce),
	"Tags":              stays(atOnce), // proxies take settings from tags, passwords among them
	"CanaryTags":        stays(atOnce),
	"Meta":              stays(atOnce),
	"CanaryMeta":        stays(atOnce),
	"EnableTagOverride": stays(atOnce),
	"TaggedAddresses":   stays(atOnce),
	"Weights":           stays(atOnce),
	"Cluster":           stays(atOnce).open(),
	"Kind":              stays(atOnce).open(),
	"Connect":           destroys("a service mesh brings tasks of its own, so " + anew),
	"Identity":          destroys(newIdentity).open(),
}

var checkTable = map[string]rule{
	"Name":                   ignores("checks are compared by name"),
	"Type":                   stays(atOnce).open(),
	"Interval":               stays(atOnce),
	"Timeout":                stays(atOnce),
	"PortLabel":              stays(atOnce).open(),
	"AddressMode":            stays(atOnce).open(),
	"Advertise":              stays(atOnce).open(),
	"Protocol":               stays(atOnce).open(),
	"Method":                 stays(atOnce).open(),
	"Path":                   stays(atOnce), // a query in it may hold a token
	"Header":                 stays(atOnce),
	"Body":                   stays(atOnce),
	"Command":                stays(atOnce).open(),
	"Args":                   stays(atOnce),
	"TaskName":               stays(atOnce).open(),
	"TLSServerName":          stays(atOnce).open(),
	"TLSSkipVerify":          stays(atOnce),
	"InitialStatus":          stays("it counts when the check is next registered").open(),
	"OnUpdate":               stays(atOnce).open(),
	"CheckRestart":           stays(atOnce),
	"SuccessBeforePassing":   stays(atOnce),
	"FailuresBeforeCritical": stays(atOnce),
	"FailuresBeforeWarning":  stays(atOnce),
	"GRPCService":            stays(atOnce).open(),
	"GRPCUseTLS":             stays(atOnce),
	"Expose":                 stays(atOnce),
	"Notes":                  stays(atOnce),
}
