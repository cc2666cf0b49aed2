package review_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/allocrunner/templates/render"
	"taskapi/internal/must"
)

// host has no agent of Consul.
var host = review.Host{
	Drivers: builtin.Drivers, Unlimited: func() error { return errors.New("why") },
	Audiences: []string{"ours"}, LongestTTL: 24 * time.Hour, ExtraClaims: []string{"team"},
	Issues: func(_ *api.Job, _ *api.TaskGroup, _ *api.Task, wi *api.WorkloadIdentity) error {
		if wi.Name == "long" {
			return errors.New("too long")
		}
		return nil
	},
}

func parse(tb testing.TB, body string) (*api.Job, error) {
	tb.Helper()
	return jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(body), Dir: tb.TempDir()})
}

// TestUnknownExtraClaim: the message names those that there are.
func TestUnknownExtraClaim(t *testing.T) {
	for want, names := range map[string][]string{"they have: a, b": {"a", "b"}, "they have: none": nil} {
		here := host
		here.ExtraClaims = names
		job := must.Get(parse(t, task("identity { extra_claims = [\"nosuch\"] }")))(t)
		_, findings, err := review.Job(job, here)
		if err != nil || len(findings) != 1 || !strings.HasSuffix(findings[0].Message, want) {
			t.Errorf("%v, %v; want one that ends with %q", findings, err, want)
		}
	}
}

// reviewOf reviews a job of one group "g", as "severity where: feature" lines.
func reviewOf(tb testing.TB, body string) []string {
	tb.Helper()
	job := must.Get(parse(tb, body))(tb)
	_, findings, err := review.Group(job, "", host)
	must.OK(tb, err)
	return lines(findings)
}

func lines(findings []review.Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, string(f.Severity)+" "+f.Where+": "+f.Feature)
	}
	return out
}

const raw = "driver = \"raw_exec\"\n" + rawConfig

const rawConfig = "config {\ncommand = \"true\"\n}\n"

// template is a task with a template, and more of its lines.
func template(lines string) string {
	return task("template {\ndestination = \"local/x\"\ndata = \"{{ env \\\"X\\\" }}\"\n" + lines + "\n}")
}

// refusedTemplate is the finding about an argument of that template.
func refusedTemplate(argument string) []string {
	return []string{`refused group "g" > task "t" > template "local/x": template ` + argument}
}

func task(lines string) string {
	return "job \"j\" {\ngroup \"g\" {\ntask \"t\" {\n" + raw + lines + "\n}\n}\n}\n"
}

func configured(lines string) string {
	return strings.Replace(task(""), rawConfig, "config {\n"+lines+"\n}\n", 1)
}

func group(lines string) string {
	return "job \"j\" {\ngroup \"g\" {\n" + lines + "\ntask \"t\" {\n" + raw + "}\n}\n}\n"
}

// batch is a job of type batch with more lines.
func batch(lines string) string { return inJob("type = \"batch\"\n" + lines) }

func inJob(lines string) string {
	return "job \"j\" {\n" + lines + "\ngroup \"g\" {\ntask \"t\" {\n" + raw + "}\n}\n}\n"
}

func service(lines string) string {
	return group("network {\nport \"http\" {}\n}\nservice {\nname = \"s\"\nport = \"http\"\nprovider = \"nomad\"\n" +
		lines + "\n}")
}

// tcp begins a check.
const tcp = "check {\nname = \"c\"\ntype = \"tcp\"\ninterval = \"2s\"\ntimeout = \"1s\"\n"

func check(lines string) string { return service(tcp + lines + "\n}") }

func http(lines string) string { return strings.Replace(check(lines), `"tcp"`, `"http"`, 1) }

func script(lines string) string { return strings.Replace(check(lines), `"tcp"`, `"script"`, 1) }

// exampleArtifact is a source.
const exampleArtifact = "https://example.org/a"

func artifact(source, lines string) string {
	return "artifact {\nsource = \"" + source + "\"\n" + lines + "\n}"
}

func refusedArtifact(source, attribute string) []string {
	return []string{`refused group "g" > task "t" > artifact "` + source + `": artifact ` + attribute}
}

// inService returns a service of the task.
func inService(lines string) string {
	return task("service {\nname = \"s\"\nprovider = \"nomad\"\n" + lines + "\n}")
}

// TestReviewSaysWhatWillNotHappen has what testdata/rules.txt can't say: notes, warnings, places, and what is refused
// by more than a rule of one attribute.
func TestReviewSaysWhatWillNotHappen(t *testing.T) {
	const inG, inT = `group "g": `, `group "g" > task "t": `
	const inS, inC = `group "g" > service "s": `, `group "g" > service "s" > check "c": `
	for name, tc := range map[string]struct {
		body string
		want []string
	}{
		"nothing":   {task(""), nil},
		"supported": {check("header { A = [\"b\"] }\nmethod = \"GET\""), nil},
		"driver": {"job \"j\" {\ngroup \"g\" {\ntask \"t\" {\ndriver = \"docker\"\n}\n}\n}",
			[]string{"refused " + inT + "driver"}},
		"unknown config": {configured("command = \"x\"\nimage = \"y\""), []string{"refused " + inT + "config"}},
		"no command":     {configured(""), []string{"refused " + inT + "config"}},
		"args as text":   {configured("command = \"x\"\nargs = \"y\""), []string{"refused " + inT + "config"}},
		"runtime config": {configured("command = \"${NOMAD_TASK_DIR}/x\"\nwork_dir = NOMAD_TASK_DIR\noom_score_adj = " +
			"\"${meta.oom}\""), nil},
		"env name":  {task("env = { \"a=b\" = 1 }"), []string{"refused " + inT + "env"}},
		"meta name": {group("meta = { \"\" = 1 }"), []string{"refused " + inG + "meta"}},
		"env value": {inJob("meta { a = \"\\u0000\" }"), []string{"refused job: meta"}},
		"colon, job": {"job \"a:b\" {\ngroup \"g\" {\ntask \"t\" {\ndriver = \"raw_exec\"\nconfig { command = " +
			"\"x\" }\n}\n}\n}", []string{"refused job: job name"}},
		"colon, group": {"job \"j\" {\ngroup \"a:b\" {\ntask \"t\" {\ndriver = \"raw_exec\"\nconfig { command = " +
			"\"x\" }\n}\n}\n}", []string{`refused group "a:b": group name`}},
		"colon, task": {"job \"j\" {\ngroup \"g\" {\ntask \"a:b\" {\ndriver = \"raw_exec\"\nconfig { command = " +
			"\"x\" }\n}\n}\n}", []string{`refused group "g" > task "a:b": task name`}},
		"colon, namespace": {inJob("namespace = \"a:b\""), []string{"refused job: namespace"}},
		"colon, region":    {inJob("region = \"a:b\""), []string{"refused job: region"}},
		"cron nonsense":    {batch("periodic { cron = \"61 * * * *\" }"), []string{"refused job: periodic cron"}},
		"not enabled": {batch("periodic {\ncron = \"@daily\"\nenabled = false\n}"),
			[]string{"warning job: periodic enabled"}},
		"system":         {inJob("type = \"system\""), []string{"note job: type"}},
		"sysbatch":       {inJob("type = \"sysbatch\""), []string{"note job: type"}},
		"batch":          {inJob("type = \"batch\""), nil},
		"all namespaces": {inJob("namespace = \"*\""), []string{"refused job: namespace"}},
		"ui":             {inJob("ui { description = \"x\" }"), []string{"note job: ui"}},
		"scheduling, once": {inJob("priority = 90\ndatacenters = [\"dc1\"]\nconstraint { distinct_hosts = true }"),
			[]string{"note job: scheduling"}},
		"update":         {group("update { canary = 1 }"), []string{"note job: scheduling"}},
		"update, many":   {group("update { max_parallel = 7 }"), nil},
		"update, health": {group("update { min_healthy_time = \"3s\" }"), nil},
		"update, later":  {group("update { progress_deadline = \"1h\" }"), nil},
		"count":          {group("count = 3"), []string{`note group "g": count`}},
		"group consul":   {group("consul {}"), []string{"refused " + inG + "consul"}},
		"scaling":        {group("scaling { max = 3 }"), []string{"note " + inG + "scaling"}},
		"disconnect":     {group("disconnect {}"), []string{"warning " + inG + "disconnect"}},
		"ephemeral disk": {group("ephemeral_disk {\nsticky = true\nmigrate = true\n}"),
			[]string{"note " + inG + "ephemeral_disk migrate"}},
		"host":             {group("network { mode = \"host\" }"), nil},
		"dns":              {group("network {\ndns {}\n}"), []string{"refused " + inG + "network dns"}},
		"cni":              {group("network {\ncni {}\n}"), []string{"refused " + inG + "network cni"}},
		"ignore_collision": {group("network {\nport \"a\" {\nstatic = 80\nignore_collision = true\n}\n}"), nil},
		"no task":          {"job \"j\" {\ngroup \"g\" {}\n}", []string{"refused " + inG + "task"}},
		"artifact": {task(artifact("https://example.org/a.tgz?archive=false", "options { checksum = \"${meta.sum}\" }")),
			nil},
		"artifact of S3": {task(artifact("s3::https://example.org/a", "")),
			refusedArtifact("s3::https://example.org/a", "source")},
		"artifact by ext":      {task(artifact("git::ext::sh", "")), refusedArtifact("git::ext::sh", "source")},
		"artifact to be known": {task(artifact("${meta.x}", "")), nil},
		"artifact with a password": {task(artifact("ftp://u:p@example.org/a?x=y", "")),
			refusedArtifact("ftp://example.org/a", "source")},
		"artifact option": {task(artifact(exampleArtifact, "options { chcksum = \"sha256:00\" }")),
			[]string{`warning group "g" > task "t" > artifact "https://example.org/a": artifact options`}},
		"artifact outside": {task(artifact(exampleArtifact, "destination = \"../other\"")),
			refusedArtifact(exampleArtifact, "destination")},
		"artifact over the socket": {task(artifact(exampleArtifact, "mode = \"file\"\ndestination = \"secrets/api.sock\"")),
			refusedArtifact(exampleArtifact, "destination")},
		"artifact in alloc": {task(artifact(exampleArtifact, "destination = \"../alloc/data\"")), nil},
		"empty template": {task("template {}"), []string{`refused group "g" > task "t" > template: template data`,
			`refused group "g" > task "t" > template: template destination`}},
		"template": {template(""), nil},
		"template script command": {template("change_mode = \"script\"\nchange_script { command = \"\" }"),
			[]string{`refused group "g" > task "t" > template "local/x": change_script command`}},
		"template vault_grace": {template(`vault_grace = "1m"`),
			[]string{`note group "g" > task "t" > template "local/x": vault_grace`}},
		"template of Vault": {task(`template {
			destination = "local/x"
			data        = "{{ define \"t\" }}{{ if 1 }}{{with secret \"a\" }}{{ end }}{{ end }}{{ end }}{{ plugin \"x\" | key }}"
		}`), []string{refusedTemplate("data")[0], refusedTemplate("data")[0], refusedTemplate("data")[0]}},
		"template that can't be read": {task("template {\ndestination = \"local/x\"\ndata = \"{{ if }}\"\n}"),
			[]string{`refused group "g" > task "t" > template "local/x": template data`}},
		"template outside": {task("template {\ndestination = \"../../x\"\ndata = \"x\"\n}"),
			[]string{`refused group "g" > task "t" > template "../../x": template destination`}},
		"template over the socket": {task("template {\ndestination = \"secrets/api.sock\"\ndata = \"x\"\n}"),
			[]string{`refused group "g" > task "t" > template "secrets/api.sock": template destination`}},
		"template in alloc": {task("template {\ndestination = \"../alloc/x\"\ndata = \"x\"\n}"), nil},
		"vault":             {task("vault {}"), []string{"refused " + inT + "vault"}},
		"job's vault":       {inJob("vault {}"), []string{"refused " + inT + "vault"}},
		"task consul":       {task("consul {}"), []string{"refused " + inT + "consul"}},
		"dispatch_payload":  {task("dispatch_payload { file = \"in\" }"), []string{"note " + inT + "dispatch_payload"}},
		"action":            {task("action \"a\" {\ncommand = \"x\"\nargs = [\"y\"]\n}"), nil},
		"action command": {task("action \"a\" { command = \"\" }"),
			[]string{`refused group "g" > task "t" > action "a": action command`}},
		"device name":   {task("resources {\ndevice \"a//b\" {}\n}"), []string{"refused " + inT + "resources device"}},
		"task networks": {task("resources {\nnetwork {}\nnetwork {}\n}"), []string{"refused " + inT + "network"}},
		"task network": {task("resources {\nnetwork {\nport \"web\" {}\n}\n}\nservice {\nname = \"s\"\n" +
			"provider = \"nomad\"\nport = \"web\"\n}"), nil},
		"task network, unlike the group's": {group("network {\nport \"a\" {}\nport \"b\" { static = 80 }\n}\n" +
			"task \"u\" {\ndriver = \"raw_exec\"\nconfig { command = \"x\" }\nresources {\nnetwork {\n" +
			"mode = \"bridge\"\nport \"a\" {}\nport \"c\" { static = 80 }\n}\n}\n}"), []string{
			"refused " + inG + "port", "refused " + inG + "port", `refused group "g" > task "u": network mode`}},
		"task network, as the group's but for -": {group("network {\nport \"a-b\" {}\n}\n" +
			"task \"u\" {\ndriver = \"raw_exec\"\nconfig { command = \"x\" }\nresources {\nnetwork {\n" +
			"port \"a_b\" {}\n}\n}\n}"), []string{"refused " + inG + "port"}},
		"port with slash":   {group("network {\nport \"t/a\" {}\n}"), []string{"refused " + inG + "port"}},
		"limits":            {task("resources {\ncpu = 500\nmemory = 20\n}"), []string{"note " + inG + "resources"}},
		"default limits":    {task("resources {\ncpu = 100\nmemory = 300\n}"), nil},
		"disk":              {task("resources { disk = 20 }"), []string{"note " + inG + "resources"}},
		"kill_signal short": {task("kill_signal = \"term\""), nil},
		"default identity twice": {`{"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "raw_exec",
			"Config": {"command": "true"}, "Identity": {"Env": true}, "Identities": [{"File": true}]}]}]}`,
			[]string{"refused " + inT + "identity"}},
		"identity ttl of the API": {task("identity { ttl = \"25h\" }"),
			[]string{`refused group "g" > task "t" > identity "default": identity ttl`}},
		"identity ttl without aud": {task("identity {\nname = \"a\"\nttl = \"25h\"\n}"),
			[]string{`refused group "g" > task "t" > identity "a": identity ttl`}},
		"identity ttl with our aud": {task("identity {\nname = \"a\"\naud = [\"x\", \"ours\"]\nttl = \"25h\"\n}"),
			[]string{`refused group "g" > task "t" > identity "a": identity ttl`}},
		"identity ttl elsewhere":    {task("identity {\nname = \"a\"\naud = [\"x\"]\nttl = \"25h\"\n}"), nil},
		"identity ttl, the longest": {task("identity { ttl = \"24h\" }"), nil},
		"identity path": {task("identity {\nfile = true\nfilepath = \"local/../../x\"\n}"),
			[]string{`refused group "g" > task "t" > identity "default": identity filepath`}},
		"identity absolute": {task("identity {\nfile = true\nfilepath = \"/etc/x\"\n}"),
			[]string{`refused group "g" > task "t" > identity "default": identity filepath`}},
		"identity socket": {task("identity {\nfile = true\nfilepath = \"secrets//api.sock\"\n}"),
			[]string{`refused group "g" > task "t" > identity "default": identity filepath`}},
		"identity directory": {task("identity {\nfile = true\nfilepath = \"secrets\"\n}"),
			[]string{`refused group "g" > task "t" > identity "default": identity filepath`}},
		"identity inside": {task("identity {\nfile = true\nfilepath = \"local/../x\"\n}"), nil},
		"identity too long": {task("identity {\nname = \"long\"\naud = [\"x\"]\n}"),
			[]string{`refused group "g" > task "t" > identity "long": identity`}},
		"identity with a claim": {task("identity { extra_claims = [\"team\"] }"), nil},
		"consul service":        {group("service { name = \"s\" }"), []string{"refused " + inS + "service provider"}},
		"connect": {group("service {\nname = \"s\"\nconnect {}\n}"),
			[]string{"refused " + inS + "connect", "refused " + inS + "service provider"}},
		"service twice": {group("service {\nname = \"s\"\nprovider = \"nomad\"\n}\nservice {\nname = \"s\"\nprovider " +
			"= \"nomad\"\n}"), []string{"refused " + inS + "service name"}},
		"check_restart":  {check("check_restart {\nlimit = 1\ngrace = \"0s\"\nignore_warnings = true\n}"), nil},
		"of the service": {service("check_restart { limit = 1 }\n" + tcp + "}"), nil},
		"limit in both":  {service("check_restart { grace = \"9s\" }\n" + tcp + "check_restart { limit = 2 }\n}"), nil},
		"limit nowhere": {service("check_restart { grace = \"9s\" }\n" + tcp + "}"),
			[]string{"note " + inC + "check_restart"}},
		"script check":      {script("command = \"x\"\nargs = [\"y\"]\ntask = \"t\""), nil},
		"script of service": {strings.Replace(script("command = \"x\""), "check {", "task = \"t\"\ncheck {", 1), nil},
		"script without":    {script("task = \"t\""), []string{"refused " + inC + "check command"}},
		"script nowhere":    {script("command = \"x\""), []string{"refused " + inC + "check task"}},
		"script in task":    {inService(strings.Replace(tcp, "tcp", "script", 1) + "command = \"x\"\n}"), nil},
		"thresholds":        {check("success_before_passing = 2\nfailures_before_critical = 3"), nil},
		"initial_status":    {check("initial_status = \"passing\""), nil},
		"ignore_warnings":   {check("on_update = \"ignore_warnings\""), []string{"note " + inC + "on_update"}},
		"method of two":     {http("path = \"/\"\nmethod = \"GET /\""), []string{"refused " + inC + "check method"}},
		"method to come":    {http("path = \"/\"\nmethod = \"${meta.m} (\""), nil},
		"path with a query": {http("path = \"health?full=%20\""), nil},
		"path unclear":      {http("path = \"/\\n%zz\""), []string{"refused " + inC + "check path"}},
		"path to come":      {http("path = \"http://${meta.p}/\""), nil},
		"path of tcp":       {check("path = \"//google.com/\""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, reviewOf(t, tc.body)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReviewRefusesNames(t *testing.T) {
	long := strings.Repeat("x", 129)
	for name, ok := range map[string]bool{
		"a": true, "a.b-c_d": true, "ü": true, strings.Repeat("x", 128): true, "web server (1) [x] #2, ~50% & more!": true,
		"": false, "a/b": false, "..": false, ".": false, "a\x00b": false, "a\nb": false, "a\\b": false, long: false,
		"t\u202e": false, "t\u200b": false, "\ufefft": false, "t\u00a0x": false, "t\x1b[2J": false, "t\u0085": false,
		"t\xff": false, "t\ue000": false, "e\u0301té-東京-🚀\ufe0f": true, // combining marks, other scripts and emoji
	} {
		jobOf := func(job, group, task string) *api.Job {
			return &api.Job{ID: &job,
				TaskGroups: []*api.TaskGroup{{Name: &group,
					Tasks: []*api.Task{{Name: task, Driver: "raw_exec", Config: map[string]any{"command": "true"}}}}}}
		}
		for kind, job := range map[string]*api.Job{"job": jobOf(name, "g", "t"), "group": jobOf("j", name, "t"),
			"task": jobOf("j", "g", name)} {
			_, findings, err := review.Group(job, "", host)
			must.OK(t, err)
			refused := slices.ContainsFunc(findings, func(f review.Finding) bool { return f.Feature == kind+" name" })
			ok := ok && (kind != "job" || !strings.Contains(name, " "))
			if refused == ok || review.AnyRefused(findings) == ok {
				t.Errorf("%s named %q: refused = %v", kind, name, refused)
			}
		}
	}
	for _, name := range []string{
		"alloc", "operator.sock", "settings.json", "state.db", "state.db.new", "users.json", ".new-1",
	} {
		got := reviewOf(t, strings.Replace(task(""), `"t"`, `"`+name+`"`, 1))
		if want := []string{`refused group "g" > task "` + name + `": task name`}; !slices.Equal(got, want) {
			t.Errorf("task %s: %v", name, got)
		}
	}
	_, findings, err := review.Group(&api.Job{ID: new("j\u202e"),
		TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "t", Driver: "raw_exec"}}}}}, "", host)
	must.OK(t, err)
	want := `"j\u202e" has U+202E in it, which can't be seen; use letters, digits, punctuation and plain spaces`
	if findings[0].Message != want {
		t.Errorf("got %q, want %q", findings[0].Message, want)
	}
	twice := "job \"j\" {\ngroup \"g\" {\ntask \"t\" {\n" + raw + "}\ntask \"t\" {\n" + raw + "}\n}\n}\n"
	if got := reviewOf(t, twice); !slices.Equal(got, []string{`refused group "g": task`}) {
		t.Errorf("two tasks of a name: %v", got)
	}
}

func TestReviewChoosesTheGroup(t *testing.T) {
	job := func(names ...string) *api.Job {
		j := &api.Job{}
		for _, name := range names {
			j.TaskGroups = append(j.TaskGroups, &api.TaskGroup{Name: &name})
		}
		return j
	}
	for name, tc := range map[string]struct {
		job   *api.Job
		group string
		want  string
		is    error
		text  string
	}{
		"none":      {job(), "", "", review.ErrNoGroup, "the job has no group"},
		"only null": {&api.Job{TaskGroups: []*api.TaskGroup{nil}}, "", "", review.ErrNoGroup, "the job has no group"},
		"the one":   {job("a"), "", "a", nil, ""},
		"named":     {job("a", "b"), "b", "b", nil, ""},
		"not named": {job("a", "b"), "", "", review.ErrGroupNotNamed,
			`the job has several groups, and one allocation runs one of them: "a", "b"`},
		"unknown":     {job("a", "b"), "c", "", review.ErrUnknownGroup, `no such group "c"; there is "a", "b"`},
		"unknown one": {job("a"), "c", "", review.ErrUnknownGroup, `no such group "c"; there is "a"`},
		"one name":    {job("a", "b", "a"), "a", "", jobspec.ErrInvalid, `two groups of a job have one name: "a", "b", "a"`},
		"nil job":     {nil, "", "", jobspec.ErrInvalid, "there is no job"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := review.Group(tc.job, tc.group, host)
			if !errors.Is(err, tc.is) || err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("error %v, want %v, %q", err, tc.is, tc.text)
			}
			if err == nil && *got.Name != tc.want {
				t.Errorf("got group %q, want %q", *got.Name, tc.want)
			}
		})
	}
}

// TestVault: where a Vault is configured, a task may have a token, and templates of such a task read secrets.
func TestVault(t *testing.T) {
	read := "template {\ndestination = \"local/x\"\ndata = \"{{ secret \\\"a\\\" }}\"\n}\n"
	here := host
	here.Programs = []render.Program{render.Vault}
	for name, tc := range map[string]struct {
		lines string
		want  []string
	}{
		"a token": {"vault {}\n" + read, nil},
		"an identity": {"vault {}\nidentity {\nname = \"vault_default\"\naud = [\"vault.io\"]\nttl = \"1h\"\n" +
			"file = true\n}", nil},
		"all":      {"vault {\nrole = \"r\"\nenv = false\ndisable_file = true\nallow_token_expiration = true\n}", nil},
		"no block": {read, refusedTemplate("data")},
		"policies": {"vault {\npolicies = [\"p\"]\n}", []string{`warning group "g" > task "t": ` + "vault policies"}},
		"cluster":  {"vault {\ncluster = \"c\"\n}", []string{`refused group "g" > task "t": ` + "vault cluster"}},
		"change_mode": {"vault {\nchange_mode = \"x\"\n}",
			[]string{`refused group "g" > task "t": ` + "vault change_mode"}},
		"no Consul here": {"vault {}\n" + strings.ReplaceAll(read, "secret", "key"), refusedTemplate("data")},
	} {
		job := must.Get(parse(t, task(tc.lines)))(t)
		_, findings, err := review.Group(job, "", here)
		if got := lines(findings); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
	}
}
