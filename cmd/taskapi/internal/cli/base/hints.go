package base

import (
	"slices"
	"strings"
)

// nouns are the words that stand before a verb in Nomad's commands: 'nomad job run', 'nomad alloc logs'.
var nouns = []string{"job", "alloc"}

// WithoutNoun returns arguments without Nomad's noun before the command, so that 'taskapi job run FILE' runs the file.
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
	noNodes = "there is no cluster: taskapi runs allocations on this machine; 'taskapi status' lists them"
	noImage = "there are no images: a task runs a program of this machine"
)

// Hints are words that users of docker, kubectl and nomad type, and words of earlier versions: commands and flags, each
// with the commands above it, joined by commas. No hint offers a command that ends or removes something, except in an
// explanation.
var Hints = []struct{ Words, Hint string }{
	{"start up apply create deploy launch", "'taskapi run JOBFILE' runs a job, with --detach in the background"},
	{"resume continue", "'taskapi takeover' resumes an allocation whose taskapi has exited"},
	{"upgrade", "'taskapi takeover' replaces the taskapi that runs an allocation by this one"},
	{"plan diff", "'taskapi update --dry-run JOBFILE' shows what a job file would change"},
	{"edit patch scale set rollout revert promote replace", "'taskapi update JOBFILE' gives an allocation another " +
		"version of its job"},
	{"wait", "'taskapi run --wait JOBFILE' returns when the allocation is healthy"},
	{"init example", "begin with examples/hello.nomad.hcl, or with 'taskapi dev -- COMMAND', which needs no job file"},
	{"lint check fmt vet", "'taskapi validate JOBFILE' says what would run here"},
	{"get list show describe inspect info job alloc allocation allocs jobs pods containers", "did you mean \"status\"? " +
		"'taskapi status' lists allocations, 'taskapi status ALLOC' shows one"},
	{"stats processes", "did you mean \"ps\"?"},
	{"log tail output", "did you mean \"logs\"?"},
	{"monitor watch history journal", "'taskapi events -f' prints events as they happen"},
	{"health", "did you mean \"checks\"?"},
	{"shell sh bash ssh enter attach-shell", "'taskapi exec [ALLOC] [TASK] -- /bin/sh' opens a shell in a task"},
	{"cp ls-files cat files", "'taskapi fs [ALLOC] PATH' lists a directory of an allocation, or prints a file"},
	{"port-forward forward port serve", "'taskapi proxy' passes requests from a TCP port on to an allocation's API"},
	{"curl request", "'taskapi api PATH' sends a request to an allocation's API"},
	{"secret secrets variable variables", "did you mean \"var\"?"},
	{"services", "did you mean \"service\"?"},
	{"acl login auth identity", "'taskapi token' makes, explains and revokes tokens"},
	{"keys key", "did you mean \"keyring\"?"},
	{"node nodes server servers system operator agent-info eval deployment namespace region cluster", noNodes},
	{"images image pull push build tag", noImage},
	{"delete remove destroy purge down halt terminate end", toEnd},
	{"kill", toSignal},
	{"prune clean cleanup", toClean},

	{"token,bad token,bad-token", "'taskapi token mint --bad NAME' makes a bad token, 'taskapi token mint --list' shows " +
		"the kinds"},
	{"token,list token,revoked token,revocations", "'taskapi token revoke --list' shows what is revoked"},
	{"token,create token,new token,make", "did you mean \"mint\"?"},
	{"token,inspect token,decode token,verify", "did you mean \"explain\"?"},
	{"token,delete", "nothing was done: 'taskapi token revoke' makes a token refused before it expires"},
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
}

// hintFor returns the hint for a command, or for a flag with its command; empty if there is none.
func hintFor(words string) string {
	words = strings.ReplaceAll(words, " ", ",")
	for _, h := range Hints {
		if slices.Contains(strings.Fields(h.Words), words) {
			return h.Hint
		}
	}
	return ""
}
