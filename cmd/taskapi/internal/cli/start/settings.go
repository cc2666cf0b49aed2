package start

import (
	"reflect"
	"slices"

	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/identity"
)

// FaultsUsage is the same for dev and test.
const FaultsUsage = "`FILE` that says which requests fail, and how, to test clients"

// BindSettings makes flags that set s. Their defaults are what it has.
func BindSettings(s *agent.Settings, f *pflag.FlagSet) {
	f.StringArrayVar(&s.JWKS, "jwks", s.JWKS,
		"JWK set, `SOURCE[,iss=ISSUER][,aud=AUDIENCE]`, a file, URL or unix:///PATH, of another issuer whose identities "+
			"are trusted; may be repeated")
	f.StringArrayVar(&s.Audiences, "audience", s.Audiences,
		"`AUDIENCE` that a token must name, and that identities without an aud are issued for (default "+identity.DefaultAudience+"); may be repeated")
	f.StringVar(&s.Issuer, "issuer", s.Issuer, "issuer (iss) of new identities, a URL")
	f.StringVar(&s.Policy, "policy", s.Policy, "what tasks may do, a `PRESET|FILE`: local (their own allocation's life, too), nomad (what Nomad gives a workload without a policy, and nothing else) or what a file says, ./nomad for one of that name")
	f.StringVar(&s.Limits, "limits", s.Limits, "what callers may cost, `NAME=VALUE[,NAME=VALUE]`..., such as failed-lookups=100/s:200,connections=64, or off for no rates, for tests of bad tokens")
	f.StringVar(&s.AuditLog, "audit-log", s.AuditLog, "file that gets a JSON line for each refusal and each change; SIGHUP reopens it")
	f.BoolVar(&s.AuditRequired, "audit-required", s.AuditRequired, "refuse changes that the audit log can't record")
	f.StringVar(&s.HostIP, "host-ip", s.HostIP, "address on which the group's ports are allocated")
	f.DurationVar(&s.IdentityTTL, "identity-ttl", s.IdentityTTL, "life of an identity that names no ttl, at least 1s")
	f.StringVar(&s.IsolateUsers, agent.IsolateFlag, s.IsolateUsers,
		"as root, run each task that has no user as a user of its own, with a number from `FROM-TO` ("+agent.FormatIDRange(allocrunner.DefaultIDRange)+" when none are given)")
	f.Lookup(agent.IsolateFlag).NoOptDefVal = agent.FormatIDRange(allocrunner.DefaultIDRange)
	f.BoolVar(&s.AllowSharedUser, "allow-shared-user", s.AllowSharedUser, "accept a --policy even if tasks run as taskapi's own user and can bypass it")
	f.StringVar(&s.MetricsListen, agent.MetricsFlag, s.MetricsListen,
		"serve the metrics alone, to everyone who connects and without a token, at http://`ADDRESS:PORT`/metrics for "+
			"Prometheus, or at unix:///PATH")
	BindConsul(s, f)
	f.StringVar(&s.SealKey, "seal-key", s.SealKey, base.SealKeyUsage)
}

// BindConsul makes the flags that say what becomes of services that are for Consul.
func BindConsul(s *agent.Settings, f *pflag.FlagSet) {
	f.StringVar(&s.Services, agent.ServicesFlag, s.Services, "where services whose provider is Consul, Nomad's default, are served: \"nomad\" is here, as with that provider (default Consul's agent)")
	f.StringVar(&s.Consul.Address, "consul-address", s.Consul.Address, "`ADDRESS` of Consul's agent: HOST:PORT, a URL, or unix:///PATH (default $CONSUL_HTTP_ADDR)")
	f.StringVar(&s.Consul.TokenFile, "consul-token-file", s.Consul.TokenFile, "file with the token for Consul, read again as it changes (default $CONSUL_HTTP_TOKEN_FILE, or the token in $CONSUL_HTTP_TOKEN, which is not kept)")
	f.StringVar(&s.Consul.Namespace, "consul-namespace", s.Consul.Namespace, "namespace of Consul for services of a group that names none (default $CONSUL_NAMESPACE)")
	f.StringVar(&s.Consul.Partition, "consul-partition", s.Consul.Partition, "admin partition of Consul's agent (default $CONSUL_PARTITION)")
	f.StringVar(&s.Consul.CAFile, "consul-ca-file", s.Consul.CAFile, "certificates of the authorities that Consul's agent is trusted by (default $CONSUL_CACERT)")
	f.StringVar(&s.Consul.CertFile, "consul-cert-file", s.Consul.CertFile, "certificate to show to Consul's agent (default $CONSUL_CLIENT_CERT)")
	f.StringVar(&s.Consul.KeyFile, "consul-key-file", s.Consul.KeyFile, "key of --consul-cert-file (default $CONSUL_CLIENT_KEY)")
}

// WithFlags returns the settings with the flags that were given in place of what they had, and the names of those flags that make a difference.
func WithFlags(s agent.Settings, flags *pflag.FlagSet) (agent.Settings, []string) {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.JWKS, s.Audiences = slices.Clone(s.JWKS), slices.Clone(s.Audiences)
	BindSettings(&s, own)
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
