package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// TestMain ends what a command starts that should have been refused: it would start the tests again, and they the next
// one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// firstJob is a job file that has no mistake.
const firstJob = `job "shop" {
  group "shop" {
    network {
      port "http" {}
    }
    task "web" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["100"]
      }
    }
  }
}
`

// mistaken runs the program in a directory that has firstJob, as job.nomad.hcl, with a mistake. It returns what is
// printed of that. Nothing is made in the data directory.
func mistaken(t *testing.T, args, job, stdin string) string {
	t.Helper()
	must.OK(t, os.WriteFile("job.nomad.hcl", []byte(job), 0o600))
	data := filepath.Join(t.TempDir(), "d")
	t.Setenv("TASKAPI_DATA_DIR", data)
	var out bytes.Buffer
	w := base.Environment{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &out, Env: os.Environ(), Version: "1"}
	words := strings.Fields(args)
	for i, word := range words {
		words[i] = strings.Trim(word, "'") // '' is an empty argument
	}
	ctx, cancel := context.WithTimeout(t.Context(), polltest.Deadline()) // for what is not refused
	defer cancel()
	if code := Run(ctx, words, w); code != base.ExitUsage {
		t.Errorf("'taskapi %s': exit code %d, want %d", args, code, base.ExitUsage)
	}
	if _, err := os.Stat(data); err == nil {
		t.Errorf("'taskapi %s' makes a data directory", args)
	}
	return out.String()
}

// TestMistakesInJobFiles: the error says where the mistake is and what to write. Each is firstJob with one text in the
// place of another.
func TestMistakesInJobFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	const group, task = `group "shop" {`, `task "web" {`
	const driver, config, command = `driver = "raw_exec"`, "config {", `command = "/bin/sleep"`
	const of = `: group "shop" > task "web": `
	service := func(lines string) string { return "service {\n" + lines + "\n    }\n    " + task }
	cron := func(lines string) string { return "schedule {\ncron {\n" + lines + "\n}\n}\n" + config }
	for name, c := range map[string]struct{ right, wrong, says string }{
		"no group":              {firstJob, "job \"x\" {\n}\n", `: a job needs group "name" { task ... }`},
		"a group without a job": {firstJob, "group \"shop\" {\n}\n", " group belongs in a job block."},
		"a service beside the groups": {group, "service {\n}\n" + group,
			":2:3: Unsupported block type: Blocks of type \"service\" are not expected here. service belongs in a group or " +
				"task block."},
		"a command beside the config": {driver, driver + "\n" + command, " command belongs in the task's config block."},
		"no quotes":                   {command, "command = /bin/sleep", " A text stands in double quotes."},
		"a unit of CPU":               {config, "resources {\ncpu = \"500MHz\"\n}\n" + config, " Write cpu = 500 (MHz)."},
		"a unit of memory": {config, "resources {\nmemory = \"256 MB\"\n}\n" + config,
			" Write memory = 256 (MB)."},

		"no provider, as in most examples": {task, service("name = \"web\"\nport = \"http\""),
			`:6: group "shop" > service "web": service provider: write provider = "nomad" into this block, and `},
		"a port that nobody has": {task, service("name = \"web\"\nprovider = \"nomad\"\nport = \"web\""),
			`:9: group "shop" > service "web": service port: it is "web"; `},
		"a check without its times": {task, service("provider = \"nomad\"\ncheck {\ntype = \"tcp\"\n}"),
			"> check: check interval: it is left out or 0; it must be at least 1s, such as 10s"},
		"two tasks of one name": {task, task + "\n" + driver + "\n}\n" + task,
			`:6: group "shop": task: there are two tasks of the name "web"; give each a name of its own`},
		"a container": {"raw_exec", "docker", ":7" + of + `driver: the driver "docker" is not here; there is: raw_exec; ` +
			"raw_exec runs a program of this machine, the command of the task's config"},
		"no driver":   {driver, "", ":6" + of + `driver: it is left out; write driver = "raw_exec"`},
		"no command":  {command, "", ":8" + of + "config: command is missing: name the program to run, as in " + command},
		"another key": {command, `cmd = "/bin/sleep"`, ":9" + of + `config: unknown key "cmd": write ` + command},
		"arguments as a text": {`["100"]`, `"100"`,
			":10" + of + `config: args must be a list of strings, not a string; write args = ["100"]`},
		"an unknown signal": {driver, driver + "\nkill_signal = \"SIGNOTHING\"", of + "kill_signal: "},
		"a template that can't be read": {config,
			"template {\ndata = \"one\\n{{ if }}\"\ndestination = \"local/x\"\n}\n" + config,
			`> template "local/x": template data: line 2: missing value for if`},
		"a function that is not there": {config, "template {\ndata = \"{{ nomadvar }}\"\ndestination = \"x\"\n}\n" + config,
			`template data: line 1: function "nomadvar" not defined`},
		"a schedule's end": {config, cron("start = \"0 0 * * * *\"\nend = \"16\""),
			`schedule: cron end is "16"; it must be a minute and an hour`},
		"a schedule's zone": {config, cron("start = \"0 0 * * * *\"\nend = \"0 1\"\ntimezone = \"Mars\""),
			`schedule: cron timezone is "Mars"; it must be a zone`},
		"a scheduled poststop task": {config, "lifecycle {\nhook = \"poststop\"\n}\n" +
			cron("start = \"0 0 * * * *\"\nend = \"0 1\""), "schedule: a poststop task runs when the others have ended"},
		"cpu beside cores": {config, "resources {\ncores = 1\ncpu = 100\n}\n" + config,
			"resources cores: it is 1; cpu must not stand beside it: a task has one or the other"},
	} {
		t.Run(name, func(t *testing.T) {
			said := mistaken(t, "validate job.nomad.hcl", strings.Replace(firstJob, c.right, c.wrong, 1), "")
			if !strings.Contains(said, c.says) {
				t.Errorf("want %q in\n%s", c.says, said)
			}
		})
	}
}

// TestMistakesOnTheCommandLine are all found before anything is made.
func TestMistakesOnTheCommandLine(t *testing.T) {
	t.Chdir(t.TempDir())
	_, group, _ := strings.Cut(strings.TrimSuffix(firstJob, "}\n"), "\n")
	two := strings.Replace(firstJob, "}\n}\n", "}\n"+strings.ReplaceAll(group, "shop", "other")+"}\n", 1)
	count := func(n string) string { return strings.Replace(firstJob, "network", "count = "+n+"\n    network", 1) }
	static := func(job string) string { return strings.ReplaceAll(job, "{}", "{ static = 28391 }") }
	const own = "resources {\n network {\n port \"own\" { static = 28391 }\n }\n }\n config"
	owned := strings.Replace(count("2"), "config", own, 1)
	refused := strings.Replace(firstJob, `"raw_exec"`, "\"docker\"\n kill_signal = \"SIGNOTHING\"", 1)
	number := "variable \"seconds\" { type = number }\n" + firstJob
	dispatched := strings.Replace(firstJob, "group", "type = \"batch\"\n  parameterized {\n payload = \"required\"\n "+
		"meta_required = [\"size\"]\n meta_optional = [\"note\"]\n }\n group", 1)
	for _, c := range []struct{ job, args, says string }{
		{firstJob, "run absent.nomad.hcl", `absent.nomad.hcl": file does not exist`},
		{firstJob, "run .", "directory"},
		{refused, "run job.nomad.hcl", "can't run as it is: 2 parts are refused (see above); nothing was started or changed"},
		{firstJob, "run ''", "argument 1 is empty: "},
		{firstJob, "run", "JOBFILE is missing: taskapi run [flags] JOBFILE"},
		{firstJob, "run a b", `unexpected argument "b": taskapi run [flags] JOBFILE`},
		{firstJob, "status a b", `unexpected argument "b": `},
		{firstJob, "version x", `unexpected argument "x": taskapi version [flags]`},
		{firstJob, "completion csh", `unknown command "csh"; did you mean bash or zsh or fish?`},
		{firstJob, "state dump", "ALLOC is missing: taskapi state dump [flags] ALLOC"},
		{firstJob, "run --alloc-id", "flag needs an argument: --alloc-id; see 'taskapi run --help'"},
		{firstJob, "run --json=perhaps job.nomad.hcl", `--json "perhaps" must be true or false; see 'taskapi run --help'`},
		{firstJob, "run --frob job.nomad.hcl", "unknown flag: --frob; see 'taskapi run --help'"},
		{firstJob, "keyring list -frob", "unknown flag: --frob; see 'taskapi keyring list --help'"},
		{firstJob, "status --data-dri x", "unknown flag: --data-dri; did you mean --data-dir?"},
		{firstJob, "statsu", `unknown command "statsu"; did you mean status or state?`},
		{firstJob, "frobnicate", `unknown command "frobnicate"; see 'taskapi --help'`},
		{firstJob, "help checsk", `unknown command "checsk"; did you mean checks?`},
		{firstJob, "help run more", `unknown command "more"; see 'taskapi run --help'`},
		{firstJob, "keyring rotat", `unknown command "rotat"; did you mean rotate?`},

		{firstJob, "run --alloc-id ../115ef685 absent.nomad.hcl", `--alloc-id "../115ef685" is not a UUID: give one like `},
		{firstJob, "run --index 10000 job.nomad.hcl", "--index 10000 is no number from 0 to 9999"},
		{firstJob, "run -o identity.ttl=999ms absent.nomad.hcl", "-o identity.ttl: 999ms is too short: give at least 1s"},
		{firstJob, "run -o identity.ttl=soon job.nomad.hcl", `-o identity.ttl: "soon" must be a duration, such as 90s, 30m`},
		{firstJob, "run -o host_ip=localhost absent.nomad.hcl", `-o host_ip: "localhost" is no IP address: give one of this`},
		{firstJob, "run -o identity.issuer=nowhere job.nomad.hcl", `identity.issuer: "nowhere" is no URL`},
		{firstJob, "run -o identity.issuer=https://x/y?z job.nomad.hcl", `has a query, a fragment or a user, which no `},
		{firstJob, "run -o host_ipp=::1 job.nomad.hcl", `there is no setting "host_ipp"; did you mean host_ip?`},
		{firstJob, "run -o limits=off job.nomad.hcl", "limits is a block: give one of its settings, such as limits.off"},
		{firstJob, "run -o host_ip job.nomad.hcl", "it must be KEY=VALUE, such as -o host_ip=127.0.0.1"},
		{firstJob, "run -o host_ip=::1 -o host_ip=::2 job.nomad.hcl", "host_ip is set twice"},
		{firstJob, "run -o limits.lookups=1/s job.nomad.hcl", `there is no setting "limits.lookups"; `},
		{firstJob, "run -o limits.connections=off job.nomad.hcl", "invalid limit: connections=off: give a number from 8 to"},
		{firstJob, "run -o gc_max_allocs=5 job.nomad.hcl", "it is for taskapi agent: give it there, or put it into "},
		{firstJob, "agent -o gc_interval=1ms", `"1ms" must be a duration of at least 1s, such as 1m, or 0s for never`},
		{firstJob, "agent -o gc_max_allocs=0", `"0" must be a number of at least 1`},
		{firstJob, "agent -o gc_disk_usage_threshold=101", `"101" must be a number above 0 and at most 100, such as 80`},
		{firstJob, "agent -o gc_inode_usage_threshold=NaN", `"NaN" must be a number above 0 and at most 100, such as 80`},
		{firstJob, "agent -o job_gc_threshold=0s", `"0s" must be a duration above 0s, such as 90s, 30m or 24h`},
		{firstJob, "run -o cluster.address=etcd://x job.nomad.hcl", "it belongs to a data directory, not to one run: put "},
		{firstJob, "validate -o consul.enabled=here job.nomad.hcl", `-o consul.enabled: "here" must be true or false`},
		{firstJob, "validate -o consul.address=tcp://x job.nomad.hcl", `address of Consul "tcp://x": it must be HOST:PORT`},
		{firstJob, "validate -o consul.namespace=x job.nomad.hcl", "there is no address of Consul's agent"},
		{firstJob, "validate -o vault.address=x:8200 job.nomad.hcl", "vault.address must be a URL, such as https://vault."},
		{firstJob, "validate -o host_volume=data=vol job.nomad.hcl",
			`the path of the host volume "data" is "vol": it must be absolute, such as /srv/data`},
		{firstJob, "run --isolate-users 80000-80010 job.nomad.hcl",
			"--isolate-users takes its range after an equals sign: --isolate-users=80000-80010"},
		{firstJob, "run --isolate-users=0-5 job.nomad.hcl", `"0-5" is no range of user numbers: give one like 80000-89999`},
		{firstJob, "proxy --listen 0.0.0.0:0", "other machines may reach this address: give 127.0.0.1 or ::1, or --remote"},
		{firstJob, "proxy --listen :4646", "is no address with a port"},
		{firstJob, "proxy --listen 127.0.0.1:0 --socket a", "--socket takes an absolute path"},
		{firstJob, "proxy --listen 127.0.0.1:0 --socket /a demo", "in place of ALLOC and TASK"},

		{firstJob, "run -d --wait --wait-timeout 0s job.nomad.hcl", "--wait-timeout 0s is not more than 0"},
		{firstJob, "run -d --wait-timeout 1s job.nomad.hcl", "--wait-timeout is for --wait"},
		{firstJob, "run -d --wait=soon job.nomad.hcl", `--wait "soon" is none of healthy, running, complete`},
		{firstJob, "run --wait running job.nomad.hcl", "--wait takes its state after an equals sign: --wait=running"},
		{dispatched, "run -d --wait job.nomad.hcl", "--wait=healthy: "},
		{firstJob, "run --exit-code-from nope job.nomad.hcl", `--exit-code-from: group "shop" has no task "nope", but web`},
		{firstJob, "run --exit-code-from web -d job.nomad.hcl", "leave out --detach, --wait and --all"},
		{firstJob, "run --exit-code-from web --wait=complete job.nomad.hcl", "leave out --detach, --wait and --all"},
		{firstJob, "run --exit-code-from web --all job.nomad.hcl", "leave out --detach, --wait and --all"},
		{firstJob, "run --exit-code-from= job.nomad.hcl", "--exit-code-from is empty"},

		{two, "run job.nomad.hcl", `: "shop", "other"; choose it with --group, or run all of them with --all`},
		{two, "run --group c job.nomad.hcl", `the job has no such group "c"; there is "shop", "other"`},
		{two, "run --all --group shop job.nomad.hcl", "--all runs every allocation of the job: leave out --group, or --all"},
		{static(two), "run --all job.nomad.hcl", `has the static port 28391, too; give each its own`},
		{static(count("2")), "run --all job.nomad.hcl", `port "http": only one of its 2 allocations can have the static`},
		{owned, "run --all job.nomad.hcl", `port "web/own": only one of its 2 allocations can have the static`},
		{count("0"), "run --all job.nomad.hcl", "the count of every group is 0: there is nothing to run"},
		{count("9223372036854775807"), "run --all job.nomad.hcl", "count: the job asks for more than 1000 allocations"},

		{number, "run job.nomad.hcl", "-var seconds="},
		{number, "run job.nomad.hcl -var", "flag needs an argument: --var; see "},

		{firstJob, "run --meta a=1 job.nomad.hcl", `--payload and --meta dispatch a parameterized job, and job "shop" has `},
		{dispatched, "run --payload job.nomad.hcl job.nomad.hcl", `it needs the meta "size": give --meta size=VALUE`},
		{dispatched, "run --meta size=1 job.nomad.hcl", "it needs a payload: give --payload FILE"},
		{dispatched, "run --meta size=1 --meta color=red --payload job.nomad.hcl job.nomad.hcl",
			`it does not take the meta "color": it takes "size", "note"`},
		{dispatched, "run --meta size job.nomad.hcl", `--meta "size" has no equals sign: give KEY=VALUE`},
		{dispatched, "run --meta size=1 --meta size=2 job.nomad.hcl", "--meta size is given twice"},
		{dispatched, "run --meta size=1 --payload none.txt job.nomad.hcl", "--payload none.txt: no such file or directory"},
		{dispatched, "run --payload - -", "--payload - and the job file - are both standard input: give one of them "},
		{dispatched, "run --all job.nomad.hcl", `job "shop" starts its children by itself: leave out --all`},
		{dispatched, "run --all --meta size=1 job.nomad.hcl", "leave out --meta, or --all"},
	} {
		if said := mistaken(t, c.args, c.job, ""); !strings.Contains(said, c.says) {
			t.Errorf("'taskapi %s': want %q in\n%s", c.args, c.says, said)
		}
	}
	if said := mistaken(t, "run -", "", "job {"); !strings.HasPrefix(said, "taskapi: <stdin>:1:") {
		t.Errorf("a job file on standard input: %s", said)
	}
}
