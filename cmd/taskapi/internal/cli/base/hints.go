package base

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// nouns are the words that stand before a verb for Nomad and docker: 'nomad alloc logs', 'docker compose ps'.
var nouns = []string{"job", "alloc", "operator", "acl", "compose", "container"}

// WithoutNoun returns arguments without the noun before the command, so that 'taskapi job run FILE' runs the file.
func WithoutNoun(args []string) []string {
	if len(args) > 1 && slices.Contains(nouns, args[0]) && !strings.HasPrefix(args[1], "-") {
		return args[1:]
	}
	return args
}

// Each of these hints explains what ends or removes something, and says that nothing was done.
const (
	toEnd = "nothing was done: 'taskapi stop ALLOC' ends an allocation's tasks gracefully, with --now it kills them, " +
		"with --purge it also removes the files; 'taskapi gc ALLOC' removes one that has ended"
	toSignal = "nothing was done: 'taskapi signal -s SIGNAL' sends a signal to tasks, 'taskapi stop --now ALLOC' kills " +
		"all tasks of an allocation"
	toClean = "nothing was done: 'taskapi gc --all' removes every allocation that has ended, with its logs"
	toShow  = "did you mean \"status\"? 'taskapi status' lists allocations, 'taskapi status ALLOC' shows one, " +
		"--json prints all of it"
	noNodes = "there is no cluster: taskapi runs allocations on this machine; 'taskapi status' lists them"
	noImage = "there are no images: a task runs a program of this machine"
)

// Hints are words that users of docker, kubectl and nomad type, and words of earlier versions: commands and flags, each
// with the commands above it, joined by commas. No hint offers a command that ends or removes something, except in an
// explanation.
var Hints = []struct{ Words, Hint string }{
	{"create deploy launch", "'taskapi run JOBFILE' runs a job, with --detach in the background"},
	{"up apply", "'taskapi run JOBFILE' runs a job, with --detach in the background; 'taskapi update JOBFILE' changes " +
		"one that runs"},
	{"resume continue", "'taskapi takeover' resumes an allocation whose taskapi has exited"},
	{"upgrade", "'taskapi takeover' replaces the taskapi that runs an allocation by this one"},
	{"plan diff", "'taskapi update --dry-run JOBFILE' shows what a job file would change"},
	{"edit patch set label annotate rollout revert promote replace rollout,undo", "'taskapi update JOBFILE' " +
		"gives an allocation another version of its job"},
	{"rollout,restart", "nothing was done: 'taskapi restart ALLOC' restarts the tasks of an allocation, 'taskapi update " +
		"JOBFILE' gives it another version of its job"},
	{"rollout,status", "'taskapi status ALLOC' shows an allocation's health, 'taskapi run --wait JOBFILE' waits for it"},
	{"scale", "set count in the job file: 'taskapi run --all JOBFILE' runs count allocations of each group"},
	{"wait", "'taskapi run --wait JOBFILE' returns when the allocation is healthy, 'taskapi attach ALLOC' when it ends"},
	{"dispatch", "'taskapi run --payload FILE JOBFILE' dispatches a parameterized job"},
	{"periodic", "'taskapi run JOBFILE' obeys the schedule of a periodic job"},
	{"init example", "begin with examples/hello.nomad.hcl, or with 'taskapi dev -- COMMAND', which needs no job file"},
	{"lint check fmt vet", "'taskapi validate JOBFILE' says what would run here"},
	{"stat get list show describe inspect info job alloc allocation allocs jobs pods containers container", toShow},
	{"stats processes", "did you mean \"ps\"?"},
	{"log tail output", "did you mean \"logs\"?"},
	{"monitor watch journal get,events get,event get,ev", "'taskapi events' prints what has happened to an allocation, " +
		"with -f also what happens next"},
	{"history deployments deployment", "'taskapi api /v1/job/JOB/versions?diffs=true' shows the versions of a job, " +
		"'taskapi events' what has happened"},
	{"health", "did you mean \"checks\"?"},
	{"shell sh bash ssh enter debug attach-shell run,--it run,--i run,--t", "'taskapi exec [ALLOC] [TASK] -- /bin/sh' " +
		"opens a shell in a task"},
	{"action", "'taskapi exec --action NAME' runs an action of the job"},
	{"cp ls-files cat files", "'taskapi fs [ALLOC] PATH' lists a directory of an allocation, or prints a file"},
	{"port-forward forward serve", "a task's ports are ports of this machine: 'taskapi status ALLOC' lists them; " +
		"'taskapi proxy' passes requests from a TCP port on to an allocation's API"},
	{"port ports network expose", "'taskapi status ALLOC' lists an allocation's ports"},
	{"curl request", "'taskapi api PATH' sends a request to an allocation's API"},
	{"metrics", "'taskapi api /v1/metrics' prints an allocation's metrics"},
	{"secret secrets variable variables get,secret get,secrets get,configmap get,cm create,secret " +
		"create,configmap", "did you mean " +
		"\"var\"?"},
	{"services get,service get,services get,svc", "did you mean \"service\"?"},
	{"acl login auth identity bootstrap", "'taskapi token' makes, explains and revokes tokens"},
	{"policy role", "'taskapi run --policy FILE JOBFILE' gives tasks rights"},
	{"keys key root", "did you mean \"keyring\"?"},
	{"node nodes server servers system operator agent-info eval namespace region cluster cluster-info snapshot raft " +
		"autopilot volume plugin quota swarm stack context drain cordon taint get,node get,nodes get,no " +
		"get,namespaces get,ns", noNodes},
	{"images image pull push build tag commit save load import", noImage},
	{"compose", "'taskapi run JOBFILE' does what up does: name the job file after the command, without -f"},
	{"pause unpause suspend", "nothing was done: 'taskapi stop ALLOC TASK' stops a task until 'taskapi start', " +
		"'taskapi signal -s STOP ALLOC' suspends the main process of each task until -s CONT"},
	{"delete remove destroy purge down halt terminate end", toEnd},
	{"kill", toSignal},
	{"prune clean cleanup system,gc system,prune", toClean},

	{"token,bad token,bad-token", "'taskapi token mint --bad NAME' makes a bad token, 'taskapi token mint --list' shows " +
		"the kinds"},
	{"token,list token,revoked token,revocations", "'taskapi token revoke --list' shows what is revoked"},
	{"create,token", "'taskapi token mint' makes a token of a task"},
	{"token,create token,new token,make", "did you mean \"mint\"?"},
	{"token,inspect token,decode token,verify", "did you mean \"explain\"?"},
	{"token,delete", "nothing was done: 'taskapi token revoke' makes a token refused before it expires"},
	{"token,self", "'taskapi token explain' says what is in a token"},
	{"service,ls var,ls keyring,ls", "did you mean \"list\"?"},
	{"service,deregister service,remove service,rm", "nothing was done: 'taskapi service delete SERVICE ID' removes a " +
		"registration"},
	{"var,delete var,rm var,remove", "nothing was done: 'taskapi var purge PATH' deletes a variable"},
	{"var,set var,write", "did you mean \"put\"?"},
	{"var,read var,show", "did you mean \"get\"?"},
	{"keyring,delete keyring,rm", "nothing was done: 'taskapi keyring remove KEY' removes an inactive key"},

	{"test,--until", "the flag is --wait"},
	{"test,--until-timeout", "the flag is --wait-timeout"},
	{"dev,--aud", "the flag is --identity NAME[=AUDIENCE]"},
	{"token,mint,--aud token,explain,--aud", "the flag is --audience"},
	{"token,mint,--out", "the flag is --out-file"},
	{"keyring,export,--openid", "the flag is --issuer"},
	{"run,--force", "--replace stops the allocation gracefully and runs it again, with new processes"},
	{"run,--var-items", "--put-var writes a variable first"},
	{"update,--force", "the flag is --replace"},
	{"events,--index", "the flag is --from"},
	{"stop,--force stop,--kill", "'taskapi stop --now' kills every task immediately"},

	{"--f --file --n --namespace --context --host --address", "flags stand after the command, and the job file is an " +
		"argument: 'taskapi run JOBFILE'"},
	{"run,--name run,--image run,--p run,--publish run,--e run,--env run,--volume", "the job file says this; " +
		"'taskapi dev -- COMMAND' runs a command without one"},
	{"run,--rm", "'taskapi dev -- COMMAND' and 'taskapi test JOBFILE -- COMMAND' remove their files at the end"},
	{"run,--check-index run,--output", "'taskapi update --dry-run JOBFILE' shows what would change, 'taskapi validate " +
		"JOBFILE' what would run"},
	{"ps,--a ps,--all ps,--q ps,--aq ps,--quiet ps,--filter ps,--no-trunc", "ps lists processes, with -l all of their " +
		"command lines; 'taskapi status' lists allocations, also those that have ended"},
	{"status,--a status,--A status,--all status,--all-namespaces status,--short status,--stats status,--evals " +
		"status,--allocs", "leave it out: 'taskapi status' lists all allocations, 'taskapi status ALLOC' shows one"},
	{"status,--q status,--aq status,--quiet", "--template prints a part of --json: the help has an example"},
	{"status,--w status,--watch", "'taskapi events -f' prints events as they happen, 'taskapi ps -f' what processes use"},
	{"ps,--no-stream ps,--s", "leave it out: ps prints once, with -f again and again"},
	{"top,--no-stream top,--b top,--n", "the flag is --once"},
	{"proxy,--port proxy,--p", "the flag is --listen ADDRESS:PORT, such as --listen 127.0.0.1:8001"},
	{"logs,--timestamps", "the flag is --time"},
	{"logs,--p logs,--previous logs,--l logs,--all-containers", "leave it out: logs prints all tasks' output, also from " +
		"before a restart"},
	{"exec,--u exec,--user exec,--w exec,--workdir exec,--env", "a command runs as its task's user, with its " +
		"environment and in its directory; 'taskapi exec [ALLOC] [TASK] -- /bin/sh' opens a shell there"},
	{"events,--since events,--until events,--filter", "leave it out: events prints all that is known, with --json " +
		"--topic TOPIC one topic's"},
	{"fs,--tail fs,--n fs,--f", "'taskapi logs --tail 20' prints the end of tasks' output, with -f also what comes"},
	{"fs,--stat fs,--H fs,--l", "leave it out: a directory's list has the sizes, times and permissions"},
	{"gc,--f gc,--force gc,--v", "nothing was done: 'taskapi stop --purge ALLOC' stops an allocation gracefully and " +
		"removes it, 'taskapi gc ALLOC' removes one that has ended"},
	{"stop,--t stop,--time stop,--timeout stop,--grace-period restart,--t restart,--time restart,--timeout", "nothing " +
		"was done: the task's kill_timeout in the job file says how long a task may take"},
	{"var,put,--in", "the format is JSON: SPEC is @FILE, or - for standard input"},
}

// FlagHints are flags of docker, kubectl and nomad, and their hints for each command that has the flag or the argument
// Has; for all commands if that is empty.
var FlagHints = []struct{ Names, Has, Hint string }{
	{"o out output", "--json", "the flag is --json, or --template TEMPLATE for a part of it"},
	{"format", "--template", "the flag is --template, with the field names of --json"},
	{"c container", "--task", "the flag is --task, or give TASK as an argument"},
	{"f file filename", "JOBFILE", "give JOBFILE without a flag before it"},
	{"job", "--alloc", "give the job's name as ALLOC, without a flag before it"},
	{"w watch", "--follow", "the flag is --follow"},
	{"y yes", "", "nothing was done: taskapi asks no questions, leave it out"},
	{"n namespace", "--alloc", "give an allocation's name or ID as ALLOC: 'taskapi status' lists them all"},
	{"address region token ca-cert context kubeconfig host", "--data-dir", "there is no cluster: --data-dir says whose " +
		"allocations"},
}

// hintFor returns the hint for a command, or for a flag with its command; empty if there is none.
func hintFor(words ...string) string {
	name := strings.Join(words, ",")
	for _, h := range Hints {
		if slices.Contains(strings.Fields(h.Words), name) {
			return h.Hint
		}
	}
	return ""
}

// flagHint returns the hint for an unknown flag of a command; empty if there is none.
func flagHint(cmd *cobra.Command, name string) string {
	if hint := hintFor(append(words(cmd), "--"+name)...); hint != "" {
		return hint
	}
	for _, h := range FlagHints {
		has := h.Has == "" || cmd.Flags().Lookup(strings.TrimPrefix(h.Has, "--")) != nil ||
			slices.Contains(strings.Fields(cmd.Use), h.Has)
		if has && slices.Contains(strings.Fields(h.Names), name) {
			return h.Hint
		}
	}
	return ""
}

// words returns the words of a command line that name a command, without the program's.
func words(cmd *cobra.Command) []string { return strings.Fields(cmd.CommandPath())[1:] }
