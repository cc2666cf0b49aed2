package start

import (
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/identity"
)

// Options are the values of the flags of run, takeover, dev and test, the commands that run an allocation. The settings
// are kept with the allocation, and hold in its next run; all other values hold only for this run.
type Options struct {
	agent.Settings
	JobFlags
	DataDir string
	Until   WaitOptions
	Faults  string // a file
	JSON    bool
	Verbose bool

	AllocID  string // of run
	Force    bool
	Detach   bool
	Detached bool // this is the process that --detach has started
	VarItems []string
	Output   follow.OutputFlag

	Task, Job, Namespace, User string // of dev
	OtherIdentities            []string
	TTL                        time.Duration

	As, JUnit string // of test
}

// Add adds the flags of one of these commands. It lists each of their flags once.
func (o *Options) Add(cmd *cobra.Command) {
	f, of := cmd.Flags(), func(commands ...string) bool { return slices.Contains(commands, cmd.Name()) }
	o.Settings = agent.DefaultSettings()
	bindSettings(&o.Settings, f)
	base.AddDataDir(cmd, &o.DataDir)
	if of("dev", "test") {
		f.Lookup("data-dir").Usage = "where keys, state and allocations live (default a temporary directory, removed at " +
			"the end)"
		f.StringVar(&o.Faults, "faults", "", "`FILE` that says which requests fail, and how, to test clients")
	}
	if of("run", "takeover") {
		f.BoolVar(&o.Detached, "detached", false, "")
		_ = f.MarkHidden("detached") // it has just been added
	}
	if of("run", "test") {
		f.StringVar(&o.Group, "group", "", "task group to run, needed when the job has several")
		o.AddVars(cmd)
	}
	switch cmd.Name() {
	case "run":
		o.Until.add(cmd, "", 0)
		f.Lookup("wait-timeout").DefValue = DefaultWait.String() + ", without end for complete"
		f.Lookup("wait").NoOptDefVal = WaitHealthy
		o.Output.Add(f)
		f.BoolVarP(&o.Verbose, "verbose", "v", false, "log more than warnings to standard error")
		f.BoolVar(&o.JSON, "json", false, "print events as JSON lines")
		f.StringVar(&o.AllocID, "alloc-id", "", "ID of the allocation, a UUID (default a new one)")
		f.BoolVar(&o.Force, "force", false,
			"if the changes need new processes, stop the allocation of --alloc-id gracefully and run it again; also run one "+
				"again that has ended")
		f.BoolVarP(&o.Detach, "detach", "d", false,
			"run in the background, print the allocation's ID when its main tasks have started, and log to "+LogName+" in "+
				"its directory")
		f.StringArrayVar(&o.VarItems, "var-items", nil,
			"write the items of a file, JSON as 'taskapi var put' takes, to the variable at a path first: `PATH=FILE`; "+
				"PATH#KEY=FILE for the whole file as one item; PATH=credential:NAME for one of systemd's credentials; may be "+
				"repeated")
	case "dev":
		f.BoolVarP(&o.Verbose, "verbose", "v", false, "log to standard error what taskapi does, and what it refuses")
		f.StringVar(&o.Task, "task", "dev", "name of the task")
		f.StringVar(&o.Job, "job", "dev", "ID of the job, and name of its group")
		f.StringVar(&o.Namespace, "namespace", api.DefaultNamespace, "namespace of the job")
		f.StringArrayVar(&o.OtherIdentities, "identity", nil, "another identity of the task, `NAME[=AUDIENCE]`; may be repeated")
		f.DurationVar(&o.TTL, "ttl", 0, "lifetime of the task's tokens, at least 1s (default that of --identity-ttl)")
		f.StringVar(&o.User, "user", "", "user that the command runs as; only for root")
	case "test":
		o.Until.add(cmd, WaitHealthy, defaultTestWait)
		f.BoolVarP(&o.Verbose, "verbose", "v", false,
			"print to standard error what happens to the group, and log what taskapi does")
		f.BoolVar(&o.JSON, "json", false, "print a JSON object about the test")
		f.StringVar(&o.As, "as", AsOperator, "whose identity the command has: operator, or a `TASK`")
		f.StringVar(&o.JUnit, "junit", "", "`FILE` that gets a report in JUnit's format")
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
}

// AddVars adds the flags of a job file's variables.
func (f *JobFlags) AddVars(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.vars, "var", nil, "value of a variable of the job file, `NAME=VALUE`; may be repeated")
	cmd.Flags().StringArrayVar(&f.varFiles, "var-file", nil, "`FILE` of variables' values; may be repeated")
}

// bindSettings makes flags that set s, which are kept with the allocation. The present values of s are their defaults.
func bindSettings(s *agent.Settings, f *pflag.FlagSet) {
	f.StringArrayVar(&s.JWKS, "jwks", s.JWKS,
		"trust the identities of another issuer, whose JWK set is at `SOURCE[,iss=ISSUER][,aud=AUDIENCE]`, a file, a "+
			"URL or unix:///PATH; may be repeated")
	f.StringArrayVar(&s.Audiences, "audience", s.Audiences,
		"`AUDIENCE` that a token must name; identities without an aud are issued for it (default "+
			identity.DefaultAudience+"); may be repeated")
	f.StringVar(&s.Issuer, "issuer", s.Issuer, "issuer (iss) of new identities, a URL")
	f.StringVar(&s.Policy, "policy", s.Policy,
		"the rights of tasks, a `PRESET|FILE`: local (they also control their own allocation), nomad (only the rights "+
			"that Nomad gives a workload without a policy), or a policy file; write a file called nomad as ./nomad")
	f.StringVar(&s.Limits, "limits", s.Limits,
		"limits for callers, `NAME=VALUE[,NAME=VALUE]`..., such as failed-lookups=100/s:200,connections=64; off switches "+
			"all rates off, for tests of bad tokens")
	f.StringVar(&s.AuditLog, "audit-log", s.AuditLog,
		"file that gets a JSON line for each refusal and each change; SIGHUP reopens it")
	f.BoolVar(&s.AuditRequired, "audit-required", s.AuditRequired, "refuse changes that the audit log can't record")
	f.StringVar(&s.HostIP, "host-ip", s.HostIP, "address on which the group's ports are allocated")
	f.DurationVar(&s.IdentityTTL, "identity-ttl", s.IdentityTTL, "lifetime of identities without a ttl, at least 1s")
	f.StringVar(&s.IsolateUsers, agent.IsolateFlag, s.IsolateUsers,
		"as root, run each task without a user as a user of its own, with a number from `FROM-TO` "+
			"("+agent.FormatIDRange(allocrunner.DefaultIDRange)+" when none are given)")
	f.Lookup(agent.IsolateFlag).NoOptDefVal = agent.FormatIDRange(allocrunner.DefaultIDRange)
	f.BoolVar(&s.AllowSharedUser, "allow-shared-user", s.AllowSharedUser,
		"accept a --policy even if tasks run as taskapi's own user, and so can bypass it")
	f.StringVar(&s.MetricsListen, agent.MetricsFlag, s.MetricsListen,
		"serve only the metrics, to everyone who connects and without a token, at http://`ADDRESS:PORT`/metrics for "+
			"Prometheus, or at unix:///PATH")
	BindConsul(s, f)
	f.StringVar(&s.SealKey, "seal-key", s.SealKey, base.SealKeyUsage)
}

// BindConsul makes the flags for services of Consul.
func BindConsul(s *agent.Settings, f *pflag.FlagSet) {
	f.StringVar(&s.Services, agent.ServicesFlag, s.Services,
		"\"nomad\" serves services with the provider \"consul\", Nomad's default, here, as if their provider were "+
			"\"nomad\" (default Consul's agent serves them)")
	f.StringVar(&s.Consul.Address, "consul-address", s.Consul.Address,
		"`ADDRESS` of Consul's agent: HOST:PORT, a URL, or unix:///PATH (default $CONSUL_HTTP_ADDR)")
	f.StringVar(&s.Consul.TokenFile, "consul-token-file", s.Consul.TokenFile,
		"file with the token for Consul, read again as it changes (default $CONSUL_HTTP_TOKEN_FILE, or the token in "+
			"$CONSUL_HTTP_TOKEN, which is not kept)")
	f.StringVar(&s.Consul.Namespace, "consul-namespace", s.Consul.Namespace,
		"namespace of Consul for services of a group that names none (default $CONSUL_NAMESPACE)")
	f.StringVar(&s.Consul.Partition, "consul-partition", s.Consul.Partition,
		"admin partition of Consul's agent (default $CONSUL_PARTITION)")
	f.StringVar(&s.Consul.CAFile, "consul-ca-file", s.Consul.CAFile,
		"certificates of the authorities that verify Consul's agent (default $CONSUL_CACERT)")
	f.StringVar(&s.Consul.CertFile, "consul-cert-file", s.Consul.CertFile,
		"client certificate for Consul's agent (default $CONSUL_CLIENT_CERT)")
	f.StringVar(&s.Consul.KeyFile, "consul-key-file", s.Consul.KeyFile,
		"key of --consul-cert-file (default $CONSUL_CLIENT_KEY)")
}

// Checked returns the settings, with Consul's variables of the environment. Errors: why they can't be used.
func Checked(s agent.Settings, w base.Environment) (agent.Settings, error) {
	s, err := s.WithConsulEnv(w.Getenv)
	if err != nil {
		return s, err
	}
	return s, s.Check()
}

// WithFlags returns the settings with the given flags, and the names of the flags that change something.
func WithFlags(s agent.Settings, flags *pflag.FlagSet) (agent.Settings, []string) {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.JWKS, s.Audiences = slices.Clone(s.JWKS), slices.Clone(s.Audiences)
	bindSettings(&s, own)
	var differ []string
	flags.Visit(func(given *pflag.Flag) {
		f := own.Lookup(given.Name)
		if f == nil {
			return
		}
		before := s.Absolute()
		if list, ok := given.Value.(pflag.SliceValue); ok {
			_ = f.Value.(pflag.SliceValue).Replace(list.GetSlice()) // the same flag has taken it already, as below
		} else {
			_ = f.Value.Set(given.Value.String())
		}
		if !reflect.DeepEqual(before, s.Absolute()) {
			differ = append(differ, given.Name)
		}
	})
	return s, differ
}
