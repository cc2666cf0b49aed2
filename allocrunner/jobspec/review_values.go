package jobspec

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
)

// differs reports that some field that is set in both is not the same.
func differs[T any](got, want *T) bool {
	if got == nil || want == nil {
		return false
	}
	g, w := reflect.ValueOf(got).Elem(), reflect.ValueOf(want).Elem()
	for i := range g.NumField() {
		a, b := g.Field(i), w.Field(i)
		if a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil() && !reflect.DeepEqual(a.Interface(), b.Interface()) {
			return true
		}
	}
	return false
}

// maxName is the longest name of a job, group or task: all three are in paths, and a file name has at most 255 bytes.
const maxName = 128

// checkPart refuses what must not be a part of an identity's sub claim: a colon, which separates those, would make it that of another task
// as well, and what can't be seen would let it, and lines of logs, look like another's.
func (r *reviewer) checkPart(feature, name string) {
	if strings.Contains(name, ":") {
		r.refuse(feature, "%q has a colon in it, which separates the parts of an identity's sub claim; use another character", name)
	}
	hidden := func(c rune) bool { return c == utf8.RuneError || !unicode.IsPrint(c) }
	if i := strings.IndexFunc(name, hidden); i >= 0 {
		c, _ := utf8.DecodeRuneInString(name[i:])
		r.refuse(feature, "%q has %U in it, which can't be seen; use letters, digits, punctuation and plain spaces", name, c)
	}
}

// checkName refuses names that could not be a directory's, or would be another's.
func (r *reviewer) checkName(kind, name string) {
	r.checkPart(kind+" name", name)
	switch {
	case name == "":
		r.refuse(kind+" name", "the name is empty")
	case len(name) > maxName:
		r.refuse(kind+" name", "the name has %d bytes; at most %d are possible", len(name), maxName)
	case strings.ContainsAny(name, `/\`):
		r.refuse(kind+" name", "the name %q has a slash or backslash in it", name)
	case name == "." || name == "..":
		r.refuse(kind+" name", "%q is no name but a way through directories", name)
	}
}

// ownNames are what the allocation directory has beside the tasks' directories. What begins with one of them and a dot is a draft of that
// file, or an older version; other drafts begin with a dot.
var ownNames = []string{
	"alloc", "operator.sock", "operator.token", "settings.json", "state.db", "keeper.sock", "keeper.json", "keeper.log", "taskapi.log",
}

func (r *reviewer) checkTaskName(name string) {
	r.checkName("task", name)
	own := func(file string) bool { return name == file || strings.HasPrefix(name, file+".") }
	switch {
	case slices.ContainsFunc(ownNames, own):
		r.refuse("task name", "%q has its place in the allocation directory already; choose another name", name)
	case len(name) > 2 && name[0] == '.':
		r.refuse("task name", "%q begins with a dot, as what is being written in the allocation directory does; choose another name", name)
	}
}

func (r *reviewer) checkNegative(feature string, n int64) {
	if n < 0 {
		r.refuse(feature, "it is negative")
	}
}

// signals are the names that Nomad takes, without SIG.
var signals = strings.Fields(`ABRT ALRM BUS CONT FPE HUP ILL INT IO IOT KILL PIPE PROF QUIT SEGV STOP SYS TERM TRAP TSTP TTIN TTOU
	USR1 USR2 WINCH XCPU XFSZ`)

func (r *reviewer) checkSignal(feature, name string) {
	short := strings.TrimPrefix(strings.ToUpper(name), "SIG")
	if name != "" && !slices.Contains(signals, short) {
		r.refuse(feature, "there is no signal %q; use one like SIGTERM", name)
	}
}

func (r *reviewer) lifecycle(l *api.TaskLifecycle) {
	if l == nil {
		return
	}
	hooks := []string{api.TaskLifecycleHookPrestart, api.TaskLifecycleHookPoststart, api.TaskLifecycleHookPoststop}
	if !slices.Contains(hooks, l.Hook) {
		r.refuse("lifecycle", "there is no hook %q; use %s", l.Hook, strings.Join(hooks, ", "))
	}
}

// healthChecks are the ways to judge health.
var healthChecks = []string{"checks", "task_states", "manual"}

// update looks at how the allocation's health is to be judged.
func (r *reviewer) update(u *api.UpdateStrategy) {
	if u == nil || deref(u.MaxParallel) == 0 {
		return
	}
	r.checkNegative("update max_parallel", int64(*u.MaxParallel))
	r.checkNegative("update min_healthy_time", int64(deref(u.MinHealthyTime)))
	if how := deref(u.HealthCheck); how != "" && !slices.Contains(healthChecks, how) {
		r.refuse("update health_check", "health can't be judged by %q; use %s", how, strings.Join(healthChecks, ", "))
	}
	if u.HealthyDeadline != nil && deref(u.MinHealthyTime) >= *u.HealthyDeadline {
		r.refuse("update healthy_deadline", "it is %s, and min_healthy_time %s: the allocation could never become healthy in time",
			*u.HealthyDeadline, deref(u.MinHealthyTime))
	}
}

func (r *reviewer) logs(l *api.LogConfig) {
	if l == nil {
		return
	}
	if l.MaxFiles != nil && *l.MaxFiles < 1 {
		r.refuse("logs", "max_files is %d; at least 1 is needed", *l.MaxFiles)
	}
	if l.MaxFileSizeMB != nil && *l.MaxFileSizeMB < 1 {
		r.refuse("logs", "max_file_size is %d; at least 1 (MiB) is needed", *l.MaxFileSizeMB)
	}
	if l.Enabled != nil && *l.Enabled == deref(l.Disabled) {
		r.refuse("logs", "enabled = %v is of old and not what disabled says; say disabled = %v alone", *l.Enabled, !*l.Enabled)
	}
}

// minInterval is the shortest interval of a restart policy that Nomad takes.
const minInterval = 5 * time.Second

func (r *reviewer) restart(p *api.RestartPolicy) {
	if p == nil || len(r.path) > 1 && reflect.DeepEqual(p, r.group.RestartPolicy) {
		return // a task that has its group's policy: the group has the finding
	}
	attempts, delay, interval, mode := deref(p.Attempts), deref(p.Delay), deref(p.Interval), deref(p.Mode)
	switch {
	case p.Mode != nil && mode != api.RestartPolicyModeDelay && mode != api.RestartPolicyModeFail:
		r.refuse("restart", `mode is %q; it must be "fail" or "delay"`, mode)
	case attempts < 0 || delay < 0:
		r.refuse("restart", "attempts and delay can't be negative")
	case p.Interval != nil && interval < minInterval:
		r.refuse("restart", "interval is %s; at least %s is needed", interval, minInterval)
	case p.Attempts != nil && attempts == 0 && mode == api.RestartPolicyModeDelay:
		r.refuse("restart", `mode "delay" with 0 attempts would wait for ever; use mode "fail", or allow an attempt`)
	case p.Interval != nil && delay > 0 && time.Duration(attempts) > interval/delay:
		r.refuse("restart", "%d attempts with %s of delay don't fit into an interval of %s", attempts, delay, interval)
	}
}

// ports checks labels and numbers of a group's ports.
func (r *reviewer) ports(n *api.NetworkResource) {
	seen, static := map[string]bool{}, map[int]string{}
	for _, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
		if p.Label == "" {
			r.refuse("port", "a port has no label")
		}
		if seen[envName(p.Label)] {
			r.refuse("port", "there are two ports labelled %q, or with labels that differ only in - and _", p.Label)
		}
		seen[envName(p.Label)] = true
		apply(r, portRows, &p)
		if p.To < -1 || p.To > 65535 {
			r.refuse("port", "port %q: to = %d; it must be 1 to 65535, or -1", p.Label, p.To)
		}
	}
	for _, p := range n.ReservedPorts {
		if p.Value < 1 || p.Value > 65535 {
			r.refuse("port", "port %q: static = %d; it must be 1 to 65535", p.Label, p.Value)
		} else if other, taken := static[p.Value]; taken {
			r.refuse("port", "ports %q and %q are both static = %d", other, p.Label, p.Value)
		}
		static[p.Value] = p.Label
	}
}

// envName is the label as it is in NOMAD_PORT_...: what is no letter or digit becomes _.
func envName(label string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, label)
}

var identityName = regexp.MustCompile(`^[a-zA-Z0-9-]{1,128}$`)

func (r *reviewer) identities(t *api.Task) {
	seen := map[string]bool{}
	if t.Identity != nil {
		seen[defaultIdentity] = true
		r.identity(t.Identity)
	}
	for _, w := range t.Identities {
		if w == nil {
			r.refuse("identity", "an identity is null; leave it out")
			continue
		}
		name := w.Name
		if name == "" {
			name = defaultIdentity
		}
		if seen[name] {
			r.refuse("identity", "there are two identities of the name %q", name)
		}
		seen[name] = true
		r.identity(w)
	}
}

func (r *reviewer) identity(w *api.WorkloadIdentity) {
	refuse := func(format string, args ...any) {
		r.refuse("identity", "%s", fmt.Sprintf("identity %q: ", w.Name)+fmt.Sprintf(format, args...))
	}
	if w.Name != "" && !identityName.MatchString(w.Name) {
		refuse("a name has 1 to 128 letters, digits and hyphens")
	}
	if slices.Contains(w.Audience, "") {
		refuse("an audience is empty")
	}
	if w.TTL < 0 {
		refuse("ttl is negative")
	}
	if w.Filepath != "" && !filepath.IsLocal(filepath.Clean(w.Filepath)) {
		refuse("filepath %q leads out of the task's directory; it is relative to that", w.Filepath)
	}
	switch w.ChangeMode {
	case "", "noop", "restart":
		if w.ChangeSignal != "" {
			refuse(`change_signal is for change_mode "signal" alone`)
		}
	case "signal":
		if w.ChangeSignal == "" {
			refuse(`change_mode "signal" needs a change_signal`)
		}
		r.checkSignal("identity change_signal", w.ChangeSignal)
	default:
		refuse(`change_mode is %q; it must be "noop", "signal" or "restart"`, w.ChangeMode)
	}
	if w.ServiceName != "" {
		refuse("service_name is for Consul")
	}
	if len(w.ExtraClaims) > 0 {
		refuse("extra_claims are not put into tokens")
	}
}

// environment refuses names and values that no process can be given.
func (r *reviewer) environment(feature string, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			r.refuse(feature, "%q is no name of an environment variable", name)
		case strings.ContainsRune(env[name], 0):
			r.refuse(feature, "the value of %s has a NUL byte in it", name)
		}
	}
}
