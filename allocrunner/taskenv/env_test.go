package taskenv_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/same"
)

// newConfig returns the task main of group g of job bh, with the ports http and admin-api { to = 8080 }, as recorded
// from Nomad.
func newConfig() taskenv.Config {
	task := &api.Task{
		Name:      "main",
		Resources: &api.Resources{CPU: new(37), MemoryMB: new(41)},
		Meta:      map[string]string{"team": "blue"},
		Env:       map[string]string{},
	}
	group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{task}}
	return taskenv.Config{
		Alloc: &api.Allocation{
			ID: "115ef685-6b9e-3eaf-e74b-6b04f094ebca", Name: "bh.g[0]", TaskGroup: "g", Namespace: "default",
			Job: &api.Job{ID: new("bh"), Name: new("bh"), Region: new("global"), TaskGroups: []*api.TaskGroup{group}},
		},
		Task: task,
		User: interfaces.User{Name: "web", UID: 7, GID: 7, Home: "/srv/web", Shell: "/bin/bash"},
		Dir: interfaces.TaskDir{
			SharedDir: "/a/alloc", LocalDir: "/a/main/local", SecretsDir: "/a/main/secrets", Dir: "/a/main",
		},
		Ports: []api.PortMapping{
			{Label: "http", Value: 20530, HostIP: "127.0.0.1"},
			{Label: "admin-api", Value: 26219, To: 8080, HostIP: "127.0.0.1"},
		},
		Node: api.Node{
			ID: "node-id", Name: "vm", Datacenter: "dc1", NodePool: "default", CgroupParent: "some.slice",
			Attributes: map[string]string{"kernel.name": "linux", "unique.network.ip-address": "192.0.2.7"},
			Meta:       map[string]string{"rack": "r1"},
		},
	}
}

// TestEnvironmentOfATask: nothing of our own environment leaks into it.
func TestEnvironmentOfATask(t *testing.T) {
	t.Setenv("TASKAPI_OWN_SECRET", "x")
	t.Setenv("PATH", "/only/ours")
	want := map[string]string{
		"PATH": taskenv.DefaultPath, "HOME": "/srv/web", "USER": "web", "LOGNAME": "web", "SHELL": "/bin/bash",
		"NOMAD_ALLOC_DIR": "/a/alloc", "NOMAD_TASK_DIR": "/a/main/local", "NOMAD_SECRETS_DIR": "/a/main/secrets",
		"NOMAD_ALLOC_ID": "115ef685-6b9e-3eaf-e74b-6b04f094ebca", "NOMAD_SHORT_ALLOC_ID": "115ef685",
		"NOMAD_ALLOC_NAME": "bh.g[0]", "NOMAD_ALLOC_INDEX": "0", "NOMAD_GROUP_NAME": "g", "NOMAD_TASK_NAME": "main",
		"NOMAD_JOB_ID": "bh", "NOMAD_JOB_NAME": "bh", "NOMAD_NAMESPACE": "default", "NOMAD_REGION": "global",
		"NOMAD_DC":        "dc1",
		"NOMAD_CPU_LIMIT": "37", "NOMAD_MEMORY_LIMIT": "41", "NOMAD_CPU_CORES": " ", "NOMAD_PARENT_CGROUP": "some.slice",
		"NOMAD_META_team": "blue", "NOMAD_META_TEAM": "blue",
		"NOMAD_PORT_http": "20530", "NOMAD_HOST_PORT_http": "20530", "NOMAD_ALLOC_PORT_http": "20530",
		"NOMAD_IP_http": "127.0.0.1", "NOMAD_HOST_IP_http": "127.0.0.1",
		"NOMAD_ADDR_http": "127.0.0.1:20530", "NOMAD_HOST_ADDR_http": "127.0.0.1:20530",
		"NOMAD_PORT_admin_api": "8080", "NOMAD_HOST_PORT_admin_api": "26219",
		"NOMAD_IP_admin_api": "127.0.0.1", "NOMAD_ADDR_admin_api": "127.0.0.1:26219",
		"NOMAD_ALLOC_PORT_admin-api": "8080", "NOMAD_ALLOC_PORT_admin_api": "8080",
		"NOMAD_HOST_IP_admin-api": "127.0.0.1", "NOMAD_HOST_IP_admin_api": "127.0.0.1",
		"NOMAD_HOST_ADDR_admin-api": "127.0.0.1:26219", "NOMAD_HOST_ADDR_admin_api": "127.0.0.1:26219",
	}
	same.As(t, want, varsOf(taskenv.New(newConfig())), "environment")
}

// TestTasksOwnNetwork: what a Nomad 2.0 client gives a task for its own network, and for another task's.
func TestTasksOwnNetwork(t *testing.T) {
	cfg := newConfig()
	cfg.Ports = []api.PortMapping{
		{Label: "main/web-ui", Value: 9, To: 80, HostIP: "::1"}, {Label: "a-b/http", Value: 8, HostIP: "127.0.0.1"},
	}
	got := varsOf(taskenv.New(cfg))
	maps.DeleteFunc(got, func(name, _ string) bool {
		return !strings.Contains(name, "web") && !strings.Contains(name, "http")
	})
	want := map[string]string{
		"NOMAD_PORT_web_ui": "9", "NOMAD_HOST_PORT_web_ui": "9", "NOMAD_IP_web_ui": "::1",
		"NOMAD_ADDR_web_ui":   "[::1]:9",
		"NOMAD_IPv6_web-ui":   "::1",
		"NOMAD_PORT_a_b_http": "8", "NOMAD_IP_a_b_http": "127.0.0.1", "NOMAD_ADDR_a_b_http": "127.0.0.1:8",
	}
	same.As(t, want, got, "variables of ports")
}

func TestConditionalVariables(t *testing.T) {
	cfg := newConfig()
	cfg.Alloc.Name = "bh.g[12]"
	cfg.Alloc.Job.ParentID = new("parent")
	cfg.Task.Resources.MemoryMaxMB = new(99)
	cfg.Ports = []api.PortMapping{{Label: "six", Value: 9, HostIP: "::1"}}
	env := taskenv.New(cfg)
	for name, want := range map[string]string{
		"NOMAD_ALLOC_INDEX": "12", "NOMAD_JOB_PARENT_ID": "parent", "NOMAD_MEMORY_MAX_LIMIT": "99",
		"NOMAD_ADDR_six": "[::1]:9",
	} {
		same.As(t, want, env.Get(name), name)
	}
}

func TestWhatIsOverWhat(t *testing.T) {
	cfg := newConfig()
	cfg.Alloc.Job.Meta = map[string]string{"a": "job", "b": "job", "c": "job"}
	cfg.Alloc.GetTaskGroup().Meta = map[string]string{"b": "group", "c": "group"}
	cfg.Task.Meta = map[string]string{"c": "task", "with-hyphen": "${NOMAD_GROUP_NAME}/${attr.kernel.name}"}
	cfg.Task.Env = map[string]string{
		"HOME": "/elsewhere", "PATH": "/opt/bin:${PATH}", "NOMAD_DC": "mine", "SHELL": "task", "TOKEN_WAS": "${NOMAD_TOKEN}",
		"not-a-name": "1", "9lives": "2",
	}
	env := taskenv.New(cfg).With(map[string]string{"SHELL": "hook", "NOMAD_TOKEN": "${not.replaced}"})
	for name, want := range map[string]string{
		"NOMAD_META_a": "job", "NOMAD_META_b": "group", "NOMAD_META_c": "task",
		"NOMAD_META_with_hyphen": "g/linux", "NOMAD_META_WITH_HYPHEN": "g/linux",
		"HOME": "/elsewhere", "PATH": "/opt/bin:" + taskenv.DefaultPath, "NOMAD_DC": "mine", "SHELL": "hook",
		"NOMAD_TOKEN": "${not.replaced}", "TOKEN_WAS": "${not.replaced}", "not_a_name": "1", "_lives": "2",
	} {
		same.As(t, want, env.Get(name), name)
	}
}

func TestMetaNamesThatMeet(t *testing.T) {
	cfg := newConfig()
	cfg.Task.Meta = map[string]string{"team": "lower", "TEAM": "upper"}
	for range 20 { // maps have no order; the environment does
		env := taskenv.New(cfg)
		if l, u := env.Get("NOMAD_META_team"), env.Get("NOMAD_META_TEAM"); l != "lower" || u != "upper" {
			t.Fatalf("NOMAD_META_team = %q, NOMAD_META_TEAM = %q", l, u)
		}
	}
}

// TestOptionalMetaOfADispatch: a key that a dispatch may leave out is empty, and no unknown variable.
func TestOptionalMetaOfADispatch(t *testing.T) {
	cfg := newConfig()
	cfg.Alloc.Job.Dispatched = true
	cfg.Alloc.Job.ParameterizedJob = &api.ParameterizedJobConfig{MetaOptional: []string{"note", "format", "team"}}
	cfg.Alloc.Job.Meta = map[string]string{"format": "pdf"}
	e := taskenv.New(cfg)
	const text = "${NOMAD_META_note}|${NOMAD_META_NOTE}|${meta.note}|${NOMAD_META_format}|${NOMAD_META_team}"
	same.As(t, "|||pdf|blue", e.ReplaceEnv(text), text, " is")
	cfg.Alloc.Job.Dispatched = false
	if got, want := taskenv.New(cfg).ReplaceEnv("${NOMAD_META_note}"), "${NOMAD_META_note}"; got != want {
		t.Errorf("a job that was not dispatched has %q for an optional key, want %q", got, want)
	}
}

func TestReplaceEnv(t *testing.T) {
	cfg := newConfig()
	cfg.Task.Env = map[string]string{"NAME": "x", "OTHER": "${NAME}!"}
	cfg.Task.Meta["where"] = "${node.datacenter}"
	env := taskenv.New(cfg)
	for in, want := range map[string]string{
		"":                                  "",
		"plain $HOME $${x":                  "plain $HOME $${x",
		"${NAME}${NOMAD_TASK_NAME}":         "xmain",
		"${attr.kernel.name}":               "linux",
		"${attr.unique.network.ip-address}": "192.0.2.7",
		"${node.unique.id}/${node.unique.name}/${node.pool}": "node-id/vm/default",
		"${meta.rack}":                  "r1",
		"${meta.where}":                 "dc1",
		"${meta.nope} ${NOPE} ${}":      "${meta.nope} ${NOPE} ${}",
		`${env["NAME"]}`:                `${env["NAME"]}`,
		"${NOMAD_ALLOC_PORT_admin-api}": "8080",
		"${OTHER}":                      "${NAME}!", // an env block has no order, so its variables can't stand for each other
		"$${NAME}":                      "$x",
	} {
		same.As(t, want, env.ReplaceEnv(in), "ReplaceEnv(", in, ")")
	}
}

func TestNodeMetaIsNotHidden(t *testing.T) {
	cfg := newConfig()
	cfg.Task.Meta["rack"] = "the job's"
	env := taskenv.New(cfg)
	same.As(t, "r1 the job's", env.ReplaceEnv("${meta.rack} ${NOMAD_META_rack}"))
	if _, changed := cfg.Node.Meta["team"]; changed {
		t.Error("the node's meta was changed")
	}
}

func TestEnvironmentOfTheAllocation(t *testing.T) {
	cfg := newConfig()
	cfg.Alloc.Job.Meta = map[string]string{"k": "v"}
	cfg.Task = nil
	env := taskenv.New(cfg)
	const in = "${NOMAD_ALLOC_INDEX} ${NOMAD_GROUP_NAME} ${NOMAD_META_k} ${NOMAD_PORT_http} ${NOMAD_TASK_NAME} ${HOME}"
	same.As(t, "0 g v 20530 ${NOMAD_TASK_NAME} ${HOME}", env.ReplaceEnv(in))
}

// varsOf returns the variables by their names.
func varsOf(env *taskenv.Env) map[string]string {
	vars := map[string]string{}
	for _, entry := range env.List() {
		name, value, _ := strings.Cut(entry, "=")
		vars[name] = value
	}
	return vars
}

func TestEnvsAreApart(t *testing.T) {
	env := taskenv.New(newConfig())
	before := varsOf(env)
	one, two := env.With(map[string]string{"A": "1"}), env.With(map[string]string{"B": "2"})
	both, other := one.With(map[string]string{"C": "3"}), one.With(map[string]string{"A": "2"})
	same.As(t, before, varsOf(env), "With changed its receiver")
	if one.Get("A") != "1" || other.Get("A") != "2" {
		t.Errorf("A is %q, and in a copy %q", one.Get("A"), other.Get("A"))
	}
	if one.Get("B") != "" || two.Get("A") != "" || one.Get("C") != "" || other.Get("C") != "" {
		t.Error("copies see each other's variables")
	}
	want := maps.Clone(before)
	want["A"], want["C"] = "1", "3"
	same.As(t, want, varsOf(both), "With twice")
}

func TestListIsSorted(t *testing.T) {
	cfg := newConfig()
	cfg.Task.Env = map[string]string{"ZZ": "1=2", "AA": ""}
	list := taskenv.New(cfg).List()
	if list[0] != "AA=" || list[len(list)-1] != "ZZ=1=2" {
		t.Errorf("first %q, last %q", list[0], list[len(list)-1])
	}
}

// TestTasksOfAGroupDoNotSeeEachOther: an environment made for one task changes neither the allocation's nor another
// task's.
func TestTasksOfAGroupDoNotSeeEachOther(t *testing.T) {
	cfg := newConfig()
	cfg.Task = nil
	alloc := taskenv.New(cfg)
	before := varsOf(alloc)
	task := func(name string) taskenv.Task {
		return taskenv.Task{
			Task: &api.Task{Name: name, Env: map[string]string{"SECRET_" + name: "of ${NOMAD_TASK_NAME}"},
				Meta: map[string]string{"owner": name}},
			User: interfaces.User{Name: name}, Dir: interfaces.TaskDir{LocalDir: "/a/" + name + "/local"},
		}
	}
	one := alloc.WithTask(task("one")).With(map[string]string{"TOKEN": "1"})
	two := alloc.WithTask(task("two"))
	if got := one.Get("SECRET_one") + ", " + one.Get("NOMAD_META_OWNER") + ", " + one.Get("TOKEN") + ", " +
		one.Get("NOMAD_TASK_DIR"); got != "of one, one, 1, /a/one/local" {
		t.Errorf("the first has %s", got)
	}
	for _, name := range []string{"SECRET_one", "TOKEN"} {
		if two.Get(name) != "" {
			t.Errorf("the second sees %s=%s", name, two.Get(name))
		}
	}
	same.As(t, "two two", two.ReplaceEnv("${meta.owner} ${NOMAD_TASK_NAME}"), "the second interpolates")
	same.As(t, before, varsOf(alloc), "the allocation's own has changed")
	if got := alloc.With(map[string]string{"TOKEN": "2"}).WithTask(task("one")).Get("TOKEN"); got != "2" {
		t.Errorf("what was added before is %q, want 2", got)
	}
}

// TestEnvNamesThatMeet: of names that become one, the last in their order counts, always.
func TestEnvNamesThatMeet(t *testing.T) {
	cfg := newConfig()
	cfg.Task.Env = map[string]string{"a-b": "1", "a@b": "2", "a!b": "0"}
	for range 50 { // maps have no order
		if got := taskenv.New(cfg).Get("a_b"); got != "2" {
			t.Fatalf("a_b = %q, want that of a@b", got)
		}
	}
}
