// Package settings reads how taskapi works on a machine from a file, from -o KEY=VALUE, and from what an allocation
// remembers, and says where each value comes from.
package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zclconf/go-cty/cty"

	"taskapi/allocrunner"
	"taskapi/allocrunner/artifacts"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/devices"
	"taskapi/allocrunner/vault"
	"taskapi/allocrunner/volumes"
	"taskapi/auth"
	"taskapi/auth/limitset"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/identity"
	"taskapi/identity/workload"
)

// Key is one setting.
type Key struct {
	Name    string // as -o takes it: BLOCK.NAME, or NAME outside of blocks
	Doc     string // what it does, and its form
	Default string // empty for none
	Env     string // the variable of the environment that stands for it; empty for none
	List    bool   // it may have several values
	pairs   bool   // its values are NAME=VALUE, and in a file { NAME = VALUE }
	fixed   bool   // only a file has it, never -o: all allocations of a data directory have it in common
	agent   bool   // it means nothing to a run: see OfAgent

	block    *block // it is a block with a label, and each value is one in JSON; nil for a value
	put      func(*agent.Settings, []string) error
	consul   func(*consul.Settings) *string // the place among Consul's settings; nil for another setting
	absolute func(dir, text string) string  // makes a relative path absolute; nil for a value that is no path
}

// Keys returns the settings that a machine's file may have, in the order of the documents.
var Keys = sync.OnceValue(func() []Key {
	all := []Key{
		{Name: "isolate_users", Doc: "as root, run each task without a user as a user of its own: true, or the range of " +
			"their numbers, FROM-TO (true is " + agent.FormatIDRange(allocrunner.DefaultIDRange) + ")", put: putIsolate},
		{Name: "allow_shared_user",
			Doc: "true accepts a policy even if tasks run as taskapi's own user, and so can bypass it",
			put: flag(func(s *agent.Settings) *bool { return &s.AllowSharedUser })},
		{Name: "enforce_resources", Doc: "false leaves memory and CPU of tasks without limits, whatever their resources say",
			Default: "true", put: not(func(s *agent.Settings) *bool { return &s.Unlimited })},
		{Name: "host_ip", Doc: "address on which a group's ports are allocated", Default: agent.DefaultSettings().HostIP,
			put: putHostIP},
		{Name: "device", List: true, block: &deviceBlock, Doc: "a device that tasks can have for themselves: a block of a " +
			"file, see Devices and cores", put: putDevices},
		{Name: "policy", Doc: "the rights of tasks: local (they also control their own allocation), nomad (only " +
			"the rights that Nomad gives a workload without a policy), or a policy file; write a file called nomad as ./nomad",
			Default: "local", put: text(func(s *agent.Settings) *string { return &s.Policy }), absolute: absolutePolicy},
		{Name: "identity.issuer", Doc: "issuer (iss) of new identities, a URL", put: putIssuer},
		{Name: "identity.ttl", Doc: "lifetime of identities without a ttl, at least 1s", Default: "8760h", put: putTTL},
		{Name: "identity.required_extra_claims", List: true, pairs: true, Doc: "claims of all identities of tasks, for " +
			"other services: " + claimForm,
			put: claims(func(e *workload.ExtraClaims) *map[string]string { return &e.Required })},
		{Name: "identity.optional_extra_claims", List: true, pairs: true, Doc: "claims that identities may ask for in a " +
			"job file, with extra_claims: " + claimForm,
			put: claims(func(e *workload.ExtraClaims) *map[string]string { return &e.Optional })},
		{Name: audienceKey, List: true, Doc: "audiences of which a token must name one; default identities, and others " +
			"without an aud, are issued for them", Default: identity.DefaultAudience,
			put: list(func(s *agent.Settings) *[]string { return &s.Audiences })},
		{Name: "identity.jwks", List: true, Doc: "other issuers whose identities are trusted: " +
			"SOURCE[,iss=ISSUER][,aud=AUDIENCE]...[,exp=optional][,claim.NAME=PATTERN]..., where SOURCE of the JWK set is " +
			"a file, a URL or unix:///PATH; docs/security.md explains the options",
			put: list(func(s *agent.Settings) *[]string { return &s.JWKS }), absolute: absoluteSource},
		{Name: "audit.path", Doc: "file that gets a JSON line for each refusal and each change; a new one after a rename",
			put: text(func(s *agent.Settings) *string { return &s.AuditLog }), absolute: absolutePath},
		{Name: "audit.required", Doc: "true refuses changes that the audit log can't record",
			put: flag(func(s *agent.Settings) *bool { return &s.AuditRequired })},
		{Name: "audit.reads", Doc: "true gives each read its line, too; nothing slows a task's reads, so that its " +
			"lines can fill the disk", put: flag(func(s *agent.Settings) *bool { return &s.AuditReads })},
		{Name: "telemetry.listen", Doc: "serve only the metrics, to everyone who connects and without a token, at " +
			"http://ADDRESS:PORT/metrics for Prometheus, or at unix:///PATH", put: putListen},
		{Name: "gc_interval", Doc: "how often taskapi agent looks for ended allocations to remove, at least 1s; 0s for never",
			Default: "1m", put: putGCInterval, agent: true},
		{Name: "gc_max_allocs", Doc: "above this number of allocations, those that run included, the agent removes ended " +
			"ones, the oldest first", Default: "50", agent: true,
			put: count(func(s *agent.Settings) *int { return &s.GC.MaxAllocs })},
		{Name: "gc_disk_usage_threshold", Doc: "above this use of the data directory's disk, in percent, the agent removes " +
			"ended allocations one by one; 100 for no limit", Default: "80",
			put: percent(func(s *agent.Settings) *float64 { return &s.GC.DiskUsage }), agent: true},
		{Name: "gc_inode_usage_threshold", Doc: "the same for the disk's inodes", Default: "70",
			put: percent(func(s *agent.Settings) *float64 { return &s.GC.InodeUsage }), agent: true},
		{Name: "job_gc_threshold", Doc: "how long after the end of a job's last allocation the agent removes them",
			Default: "4h", put: duration(func(s *agent.Settings) *time.Duration { return &s.GC.JobThreshold }), agent: true},
		{Name: "consul.enabled", Doc: "false registers services with the provider \"consul\", Nomad's default, here, as if " +
			"their provider were \"nomad\"", Default: "true", put: not(func(s *agent.Settings) *bool { return &s.ConsulHere })},
		{Name: "consul.address", Doc: "Consul's agent: HOST:PORT, a URL, or unix:///PATH", Env: "CONSUL_HTTP_ADDR",
			consul: func(c *consul.Settings) *string { return &c.Address }},
		{Name: "consul.token_file", Doc: "file with the token for Consul, read again as it changes; the token in " +
			"$CONSUL_HTTP_TOKEN is used where there is none, and not kept", Env: "CONSUL_HTTP_TOKEN_FILE",
			consul: func(c *consul.Settings) *string { return &c.TokenFile }, absolute: absolutePath},
		{Name: "consul.namespace", Doc: "namespace of Consul for services of a group that names none",
			Env: "CONSUL_NAMESPACE", consul: func(c *consul.Settings) *string { return &c.Namespace }},
		{Name: "consul.partition", Doc: "admin partition of Consul's agent", Env: "CONSUL_PARTITION",
			consul: func(c *consul.Settings) *string { return &c.Partition }},
		{Name: "consul.ca_file", Doc: "certificates of the authorities that verify Consul's agent", Env: "CONSUL_CACERT",
			consul: func(c *consul.Settings) *string { return &c.CAFile }, absolute: absolutePath},
		{Name: "consul.cert_file", Doc: "client certificate for Consul's agent", Env: "CONSUL_CLIENT_CERT",
			consul: func(c *consul.Settings) *string { return &c.CertFile }, absolute: absolutePath},
		{Name: "consul.key_file", Doc: "key of consul.cert_file", Env: "CONSUL_CLIENT_KEY",
			consul: func(c *consul.Settings) *string { return &c.KeyFile }, absolute: absolutePath},
		{Name: "artifact.http_read_timeout", Doc: "how long the download of an artifact may take", Default: "30m",
			put: duration(func(s *agent.Settings) *time.Duration { return &s.Artifacts.HTTPTimeout })},
		{Name: "artifact.http_max_size", Doc: "how large a download may be, such as 500MB or 2GiB", Default: "10GiB",
			put: size(func(s *agent.Settings) *int64 { return &s.Artifacts.Download })},
		{Name: "artifact.git_timeout", Doc: "how long git may take for an artifact", Default: "30m",
			put: duration(func(s *agent.Settings) *time.Duration { return &s.Artifacts.GitTimeout })},
		{Name: "artifact.hg_timeout", Doc: "how long hg may take for an artifact", Default: "30m",
			put: duration(func(s *agent.Settings) *time.Duration { return &s.Artifacts.HgTimeout })},
		{Name: "artifact.decompression_size_limit", Doc: "how large the content of an archive may be", Default: "10GiB",
			put: size(func(s *agent.Settings) *int64 { return &s.Artifacts.Unpacked })},
		{Name: "artifact.decompression_file_count_limit", Doc: "how many files an archive may have", Default: "4096",
			put: count(func(s *agent.Settings) *int { return &s.Artifacts.Files })},
		{Name: "artifact.set_environment_variables", List: true, Doc: "names of variables of taskapi's environment that " +
			"downloads and git see, such as https_proxy",
			put: list(func(s *agent.Settings) *[]string { return &s.Artifacts.Environment })},
		{Name: "artifact.file_dirs", List: true, Doc: "directories from which artifacts may be copied, by file:///PATH or " +
			"git::file:///PATH; none unless they are given",
			put: list(func(s *agent.Settings) *[]string { return &s.Artifacts.FileDirs }), absolute: absolutePath},
		{Name: "host_volume", List: true, block: &volumeBlock, Doc: "directories of this machine that jobs may use " +
			"as volumes, " + volumes.Form + "; in a file, blocks host_volume \"NAME\" with path and read_only", put: putVolumes},
		{Name: "vault.address", Doc: "URL of Vault or OpenBao, for tasks with a vault block",
			put: text(func(s *agent.Settings) *string { return &s.Vault.Address })},
		{Name: "vault.token_file", Doc: "file with a token of Vault for all of these tasks, read again as it changes; " +
			"without it each task logs in with its own identity",
			put: text(func(s *agent.Settings) *string { return &s.Vault.TokenFile }), absolute: absolutePath},
		{Name: "vault.role", Doc: "role of a login whose vault block names none, if the auth method has no default",
			put: text(func(s *agent.Settings) *string { return &s.Vault.Role })},
		{Name: "vault.auth_path", Doc: "path of Vault's auth method for JWTs", Default: vault.DefaultAuthPath,
			put: text(func(s *agent.Settings) *string { return &s.Vault.AuthPath })},
		{Name: "vault.audience", Doc: "audience (aud) of the identities that log in, unless the job file has an identity " +
			vault.IdentityName, Default: vault.DefaultAudience,
			put: text(func(s *agent.Settings) *string { return &s.Vault.Audience })},
		{Name: "vault.namespace", Doc: "namespace of Vault for a vault block that names none",
			put: text(func(s *agent.Settings) *string { return &s.Vault.Namespace })},
		{Name: "vault.ca_file", Doc: "certificates of the authorities that verify Vault",
			put: text(func(s *agent.Settings) *string { return &s.Vault.CAFile }), absolute: absolutePath},
		{Name: "limits.off", Doc: "true switches all rates off that are not set, for tests of bad tokens", put: putLimitsOff},
	}
	for i, k := range all {
		if k.consul != nil {
			all[i].put = text(func(s *agent.Settings) *string { return k.consul(&s.Consul) })
		}
	}
	for _, l := range limitset.Limits() {
		all = append(all, Key{Name: "limits." + l.Name, Doc: l.Doc, Default: l.Default, put: putLimit(l.Name)})
	}
	return all
})

const audienceKey = "identity.audience"

// SealKey names the setting of a data directory: the file with the key that seals its key ring.
const SealKey = "keyring.seal_key"

// dataKeys returns the settings of a data directory's own file.
func dataKeys() []Key {
	return []Key{{Name: SealKey, Doc: "file with the key that seals the key ring", Default: "seal.key in the key ring",
		put: text(func(s *agent.Settings) *string { return &s.SealKey }), absolute: absolutePath},
		{Name: "cluster.address", Doc: "etcd, in which this data directory and those of other machines keep variables and " +
			"services: etcd://HOST:PORT,HOST:PORT..., or etcds:// for TLS", put: putCluster, fixed: true},
		{Name: "cluster.key_file", Doc: "file with the 32 bytes that seal all values, the same on all machines",
			put: text(func(s *agent.Settings) *string { return &s.Cluster.KeyFile }), absolute: absolutePath, fixed: true},
		{Name: "cluster.tls_ca_file", Doc: "certificates of the authorities that verify etcd; the system's without it",
			put: text(func(s *agent.Settings) *string { return &s.Cluster.TLSCAFile }), absolute: absolutePath, fixed: true},
		{Name: "cluster.tls_cert_file", Doc: "client certificate for etcd",
			put: text(func(s *agent.Settings) *string { return &s.Cluster.TLSCertFile }), absolute: absolutePath, fixed: true},
		{Name: "cluster.tls_key_file", Doc: "key of cluster.tls_cert_file",
			put: text(func(s *agent.Settings) *string { return &s.Cluster.TLSKeyFile }), absolute: absolutePath, fixed: true},
		{Name: "cluster.user", Doc: "user of etcd",
			put: text(func(s *agent.Settings) *string { return &s.Cluster.User }), fixed: true},
		{Name: "cluster.password_file", Doc: "file with the password of cluster.user",
			put: text(func(s *agent.Settings) *string { return &s.Cluster.PasswordFile }), absolute: absolutePath, fixed: true}}
}

func putCluster(s *agent.Settings, v []string) error {
	s.Cluster.Address = v[0]
	return etcd.CheckAddress(v[0])
}

// ClusterOf returns what the settings file of a data directory says about the store that machines share.
func ClusterOf(dir string) (etcd.Settings, error) {
	all, err := ReadData(dir)
	if err != nil {
		return etcd.Settings{}, err
	}
	s, err := all.resolve()
	if err == nil {
		err = s.Cluster.Check()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", filepath.Join(dir, Name), err)
	}
	return s.Cluster, err
}

// OfAgent reports whether a setting is about taskapi agent's own work, and so means nothing to a run.
func OfAgent(key string) bool {
	k, err := find(Keys(), key)
	return err == nil && k.agent
}

// every returns all settings, in the order of the documents.
func every() []Key { return append(slices.Clip(Keys()), dataKeys()...) }

func text(at func(*agent.Settings) *string) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) error {
		*at(s) = v[0]
		return nil
	}
}

func list(at func(*agent.Settings) *[]string) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) error {
		*at(s) = v
		return nil
	}
}

func flag(at func(*agent.Settings) *bool) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) (err error) {
		*at(s), err = boolean(v[0])
		return err
	}
}

// not is flag for a setting that says the opposite.
func not(at func(*agent.Settings) *bool) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) error {
		is, err := boolean(v[0])
		*at(s) = !is
		return err
	}
}

func boolean(text string) (bool, error) {
	is, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q must be true or false", text)
	}
	return is, nil
}

func putIsolate(s *agent.Settings, v []string) error {
	switch v[0] {
	case "true":
		s.IsolateUsers = agent.FormatIDRange(allocrunner.DefaultIDRange)
	case "false":
		s.IsolateUsers = ""
	default:
		s.IsolateUsers = v[0]
		return s.CheckIsolate()
	}
	return nil
}

// deviceBlock is the form of a device. ${ids} in a variable stays for the task's start.
var deviceBlock = block{
	label: "name", words: "VENDOR/TYPE/NAME", fields: deviceFields("attributes"),
	blocks: map[string]block{
		"instance": {label: "id", words: "the ID", fields: deviceFields(), plural: "instances", literal: idsLater},
	},
	literal: idsLater,
}

var idsLater = map[string]cty.Value{"ids": cty.StringVal("${ids}")}

func deviceFields(maps ...string) map[string]cty.Type {
	fields := map[string]cty.Type{"nodes": cty.List(cty.String), "mounts": cty.List(cty.String)}
	for _, name := range append(maps, "env") {
		fields[name] = cty.Map(cty.String)
	}
	return fields
}

func putDevices(s *agent.Settings, v []string) error {
	s.Devices = nil
	for _, text := range v {
		var d devices.Device
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&d); err != nil {
			return fmt.Errorf("it must be a device in JSON, such as "+
				`{"name":"nvidia/gpu/A100","instances":[{"id":"GPU-0"}]}`+": %w", err)
		}
		s.Devices = append(s.Devices, d)
	}
	return devices.Check(s.Devices)
}

func putHostIP(s *agent.Settings, v []string) error {
	s.HostIP = v[0]
	if _, err := netip.ParseAddr(v[0]); err != nil {
		return fmt.Errorf("%q is no IP address: give one of this machine, such as 127.0.0.1 or ::1", v[0])
	}
	return nil
}

func putIssuer(s *agent.Settings, v []string) error {
	s.Issuer = v[0]
	return agent.CheckIssuer(v[0])
}

const claimForm = "NAME=VALUE, in a file { NAME = \"VALUE\" }; a value may have references such as ${job.meta.team}, " +
	"which docs/security.md lists"

// claims is for extra claims.
func claims(at func(*workload.ExtraClaims) *map[string]string) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) error {
		all := map[string]string{}
		for _, text := range v {
			name, value, ok := strings.Cut(text, "=")
			if _, twice := all[name]; !ok || name == "" || twice {
				return fmt.Errorf("%q must be NAME=VALUE, such as team=${job.meta.team}, each name once", text)
			}
			all[name] = value
		}
		*at(&s.ExtraClaims) = all
		return nil
	}
}

// minTTL is the least life of an identity: claims count seconds, and a renewal takes time.
const minTTL = time.Second

func putTTL(s *agent.Settings, v []string) (err error) {
	if s.IdentityTTL, err = time.ParseDuration(v[0]); err != nil {
		return fmt.Errorf("%q must be a duration, such as 90s, 30m or 24h", v[0])
	}
	if s.IdentityTTL < minTTL {
		return fmt.Errorf("%v is too short: give at least %v, such as 24h", s.IdentityTTL, minTTL)
	}
	return nil
}

// duration is for a time above 0.
func duration(at func(*agent.Settings) *time.Duration) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) error {
		d, err := time.ParseDuration(v[0])
		if err != nil || d <= 0 {
			return fmt.Errorf("%q must be a duration above 0s, such as 90s, 30m or 24h", v[0])
		}
		*at(s) = d
		return nil
	}
}

// size is for a number of bytes.
func size(at func(*agent.Settings) *int64) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) (err error) {
		*at(s), err = artifacts.ParseSize(v[0])
		return err
	}
}

// count is for a number of things.
func count(at func(*agent.Settings) *int) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) error {
		n, err := strconv.Atoi(v[0])
		if err != nil || n < 1 {
			return fmt.Errorf("%q must be a number of at least 1", v[0])
		}
		*at(s) = n
		return nil
	}
}

// percent is for a share above 0.
func percent(at func(*agent.Settings) *float64) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) error {
		n, err := strconv.ParseFloat(v[0], 64)
		if err != nil || !(n > 0 && n <= 100) { // NaN is neither
			return fmt.Errorf("%q must be a number above 0 and at most 100, such as 80", v[0])
		}
		*at(s) = n
		return nil
	}
}

// minGCInterval is the least pause between two looks at the ended allocations.
const minGCInterval = time.Second

func putGCInterval(s *agent.Settings, v []string) error {
	d, err := time.ParseDuration(v[0])
	if err != nil || d != 0 && d < minGCInterval {
		return fmt.Errorf("%q must be a duration of at least %v, such as 1m, or 0s for never", v[0], minGCInterval)
	}
	s.GC.Interval = d
	return nil
}

func putListen(s *agent.Settings, v []string) error {
	s.MetricsListen = v[0]
	return agent.CheckMetricsListen(v[0])
}

// volumeBlock is the form of a volume.
var volumeBlock = block{
	label: "name", words: "the name of the volume", fields: map[string]cty.Type{"path": cty.String, "read_only": cty.Bool},
	text: func(object map[string]any) string {
		v := volumes.Volume{}
		v.Name, _ = object["name"].(string)
		v.Name = strings.ReplaceAll(v.Name, "=", "?") // which is refused
		v.Path, _ = object["path"].(string)
		v.ReadOnly, _ = object["read_only"].(bool)
		return v.String()
	},
}

func putVolumes(s *agent.Settings, v []string) (err error) {
	s.HostVolumes, err = volumes.ParseAll(v)
	return err
}

func putLimitsOff(s *agent.Settings, v []string) error {
	is, err := boolean(v[0])
	if is {
		s.Limits = append([]string{limitset.AllOff}, s.Limits...)
	}
	return err
}

func putLimit(name string) func(*agent.Settings, []string) error {
	return func(s *agent.Settings, v []string) error {
		set := limitset.Default()
		s.Limits = append(s.Limits, name+"="+v[0])
		return set.Put(name, v[0])
	}
}

// absolutePath returns a path relative to a directory as an absolute one.
func absolutePath(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// absolutePolicy leaves the name of a preset as it is; a file of that name is given as ./nomad.
func absolutePolicy(dir, text string) string {
	if _, preset := auth.Preset(text); preset {
		return text
	}
	return absolutePath(dir, text)
}

func absoluteSource(dir, text string) string {
	source, options, isURL := agent.KeySource(text)
	if isURL {
		return text
	}
	return absolutePath(dir, source) + options
}

// errEmpty refuses a value that is left out where it would mean nothing.
var errEmpty = errors.New("a value is missing")
