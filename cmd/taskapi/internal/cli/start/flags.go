package start

import (
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
)

// Options are the values of the flags of run, takeover, dev and test, the commands that run an allocation.
type Options struct {
	agent.Settings // of the flags and of everything else that says how the agent works
	SettingFlags
	JobFlags
	DataDir string
	Until   WaitOptions
	Faults  string // a file
	JSON    bool
	Verbose bool

	All      bool // of run
	AllocID  string
	Index    int
	Replace  bool
	Standby  bool
	Detach   bool
	Detached bool // this is the process that --detach has started
	Named    bool // and it has inherited the lock on the allocation's name
	PutVars  []string
	Payload  string // a file, or - for standard input
	Meta     []string
	Output   follow.OutputFlag
	ExitFrom ExitCodeFrom

	Task, Job, Namespace, User string // of dev
	OtherIdentities            []string
	TTL                        time.Duration

	As, JUnit string // of test
}

// Add adds the flags of one of these commands, those used most often first.
func (o *Options) Add(cmd *cobra.Command) {
	f := cmd.Flags()
	switch cmd.Name() {
	case "run":
		f.BoolVarP(&o.Detach, "detach", "d", false,
			"run in the background, print the allocation's ID when its main tasks have started, and log to "+LogName+" in "+
				"its directory")
		o.Until.AddOptional(cmd, "run in the background, and return when the allocation is")
		f.BoolVar(&o.All, "all", false, "run all allocations of the job: each group, count times")
		f.IntVar(&o.Index, "index", 0, "run the allocation JOB.GROUP[`N`] beside those with other numbers")
		f.BoolVar(&o.Replace, "replace", false,
			"if the allocation runs or was left running, stop it gracefully and run it again, with new processes")
		o.addJob(cmd)
		f.StringVar(&o.Payload, "payload", "",
			"dispatch a parameterized job: run one child of it, with the content of a `FILE`, or - for standard input")
		f.StringArrayVar(&o.Meta, "meta", nil,
			"dispatch a parameterized job: run one child of it, with this `KEY=VALUE` in its meta; may be repeated")
		o.Output.Add(f)
		f.StringVar(&o.ExitFrom.Task, "exit-code-from", "",
			"stop the allocation when this `TASK` has ended for good, and exit with the task's exit code")
		f.BoolVarP(&o.Verbose, "verbose", "v", false, "log more than warnings to standard error")
		f.BoolVar(&o.JSON, "json", false, "print events as JSON lines")
		f.StringVar(&o.AllocID, "alloc-id", "", "`ID` of the allocation, a UUID (default a new one)")
		f.BoolVar(&o.Named, "named", false, "")
		f.Uint64Var(&o.Version, "job-version", 0, "version `N` of the job")
		f.Int64Var(&o.SubmitTime, "submit-time", 0, "when it was submitted, in `NANOSECONDS`")
		f.BoolVar(&o.Standby, "standby", false,
			"wait until no other machine of the cluster runs the allocation with --standby, and run it then")
		f.StringArrayVar(&o.PutVars, "put-var", nil,
			"write the items of a file, JSON as 'taskapi var put' takes, to the variable at a path first: `PATH=FILE`; "+
				"PATH#KEY=FILE for the whole file as one item; PATH=credential:NAME for one of systemd's credentials; may be "+
				"repeated")
		hide(f, "alloc-id", "job-version", "named", "put-var", "standby", "submit-time")
	case "dev":
		f.BoolVarP(&o.Verbose, "verbose", "v", false, "log to standard error what taskapi does, and what it refuses")
		f.StringArrayVar(&o.OtherIdentities, "identity", nil,
			"another identity of the task, `NAME[=AUDIENCE]`; may be repeated")
		f.DurationVar(&o.TTL, "ttl", 0, "lifetime of the task's tokens, at least 1s (default the setting identity.ttl)")
		f.StringVar(&o.Task, "task", "dev", "`NAME` of the task")
		f.StringVar(&o.Job, "job", "dev", "`ID` of the job, and name of its group")
		f.StringVar(&o.Namespace, "namespace", api.DefaultNamespace, "`NAMESPACE` of the job")
		f.StringVar(&o.User, "user", "", "`USER` that the command runs as; only for root")
	case "test":
		o.Until.add(cmd, WaitHealthy, defaultTestWait)
		f.StringVar(&o.As, "as", AsOperator, "whose identity the command has: operator, or a `TASK`")
		f.StringVar(&o.JUnit, "junit", "", "`FILE` that gets a report in JUnit's format")
		o.addJob(cmd)
		f.BoolVarP(&o.Verbose, "verbose", "v", false,
			"print to standard error what happens to the group, and log what taskapi does")
		f.BoolVar(&o.JSON, "json", false, "print a JSON object about the test")
	}
	o.addRights(f)
	o.SettingFlags.Add(cmd)
	base.AddDataDir(cmd, &o.DataDir)
	switch cmd.Name() {
	case "dev", "test":
		f.Lookup("data-dir").Usage = "`DIR` of keys, state and allocations (default a temporary one, removed at the end)"
		f.StringVar(&o.Faults, "faults", "", "`FILE` that says which requests fail, and how, to test clients")
	case "run", "takeover":
		f.BoolVar(&o.Detached, "detached", false, "")
		hide(f, "detached")
	}
}

func (o *Options) addJob(cmd *cobra.Command) {
	o.AddVars(cmd)
	cmd.Flags().StringVar(&o.Group, "group", "", "task `GROUP` to run, needed when the job has several")
}

func hide(f *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = f.MarkHidden(name) // it has just been added
	}
}

// AsOperator is whose identity the command of test has by default.
const AsOperator = "operator"

// LogName is the file in an allocation's directory that a detached taskapi writes to.
const LogName = "taskapi.log"

// JobFlags are the flags of every command that reads a job file.
type JobFlags struct {
	Group    string
	vars     []string
	varFiles []string
	NoFiles  bool

	Version    uint64 // that the job gets
	SubmitTime int64  // when the job was submitted, in Unix nanoseconds; 0 when no other allocation came with it
}

// AddVars adds the flags of a job file's variables.
func (f *JobFlags) AddVars(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.vars, "var", nil, "set a variable of the job file, `NAME=VALUE`; may be repeated")
	cmd.Flags().StringArrayVar(&f.varFiles, "var-file", nil, "`FILE` that sets variables of the job file; may be repeated")
}
