package jobdiff_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/internal/must"
)

// before is a job with one of most things, and after makes another version of it.
const before = `job "j" {
  meta { team = "blue" }
  group "g" {
    shutdown_delay = "1s"
    restart { attempts = 2 }
    network {
      port "http" {}
      port "admin" { to = 8080 }
    }
    service {
      name     = "s"
      port     = "http"
      provider = "nomad"
      tags     = ["a"]
      check {
        name     = "c"
        type     = "http"
        path     = "/"
        interval = "2s"
        timeout  = "1s"
      }
    }
    task "t" {
      driver       = "raw_exec"
      user         = "nobody"
      kill_timeout = "5s"
      env { A = "hunter2" }
      config {
        command = "true"
        args    = ["hunter2"]
      }
      identity {
        name = "vault"
        aud  = ["vault.io"]
      }
    }
    task "u" {
      driver = "raw_exec"
      config { command = "true" }
      lifecycle { hook = "prestart" }
    }
  }
  group "other" {
    task "t" {
      driver = "raw_exec"
      config { command = "true" }
    }
  }
}`

// changed returns the lines of what one or more replacements change in the job: old, new, old, new ...
func changed(tb testing.TB, replacements ...string) []string {
	tb.Helper()
	text := before
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(text, replacements[i]) {
			tb.Fatalf("the job has no %q", replacements[i])
		}
		text = strings.Replace(text, replacements[i], replacements[i+1], 1)
	}
	var got []string
	for _, c := range jobdiff.Changes(mustParse(tb, before), mustParse(tb, text), "g") {
		kind := "destructive "
		if c.InPlace {
			kind = "in place "
		}
		got = append(got, kind+c.String())
	}
	return got
}

func mustParse(tb testing.TB, body string) *api.Job {
	tb.Helper()
	job := must.Get(jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(body), Dir: tb.TempDir()}))(tb)
	return job
}

func TestChangesAreSaid(t *testing.T) {
	const inT = `group "g" > task "t" > `
	const process = "; processes get it at their start; needs new processes"
	const count = "; applies from the next stop or restart"
	const ports = "; ports are granted at creation; needs new processes of all tasks"
	const place = "; set at creation; needs new processes of all tasks"
	const token = "; tokens and files are made from it at the start; needs new processes"
	const meta = "; checks and services get it at once, a process at its next start"
	for name, c := range map[string]struct {
		replace []string
		want    []string
	}{
		"nothing": {nil, nil},
		"kill_timeout": {[]string{`"5s"`, `"10s"`},
			[]string{"in place " + inT + "kill_timeout: changes from 5s to 10s" + count}},
		"kill_signal": {[]string{"user ", "kill_signal = \"SIGHUP\"\nuser "},
			[]string{"in place " + inT + `kill_signal: changes from "" to "SIGHUP"` + count}},
		"shutdown_delay": {[]string{`"1s"`, `"0s"`},
			[]string{`in place group "g" > shutdown_delay: changes from 1s to 0s; applies from the next stop; a restart does ` +
				`not wait for it`}},
		"restart, once": {[]string{"attempts = 2", "attempts = 1"},
			[]string{`in place group "g" > restart > attempts: changes from 2 to 1; applies from the task's next exit`}},
		"a task's restart": {[]string{"user ", "restart { attempts = 0 }\nuser "},
			[]string{"in place " + inT + `restart > attempts: changes from 2 to 0; applies from the task's next exit`}},
		"meta": {[]string{`team = "blue"`, `cost = "1"`},
			[]string{`in place job > meta: "cost" is added, "team" is removed` + meta}},
		"check": {[]string{`path     = "/"`, `path     = "/x?token=hunter2"`, `"2s"`, `"3s"`},
			[]string{`in place group "g" > service "s" > check "c" > path: changes`,
				`in place group "g" > service "s" > check "c" > interval: changes from 2s to 3s`}},
		"check's name": {[]string{`"c"`, `"d"`},
			[]string{`in place group "g" > service "s" > check "c": is removed`,
				`in place group "g" > service "s" > check "d": is added`}},
		"tags": {[]string{`["a"]`, `["b"]`}, []string{`in place group "g" > service "s" > tags: changes`}},
		"provider": {[]string{`provider = "nomad"`, `provider = "consul"`},
			[]string{`in place group "g" > service "s" > provider: changes from "nomad" to "consul"`}},
		"priority": {[]string{"meta {", "priority = 90\nmeta {"},
			[]string{"in place job > priority: changes from 50 to 90; has no effect on one machine"}},
		"leader": {[]string{"user ", "leader = true\nuser "},
			[]string{"in place " + inT + "leader: changes from false to true; applies from the task's end, at once if it " +
				"has ended"}},
		"log files": {[]string{"user ", "logs { max_files = 3 }\nuser "},
			[]string{"in place " + inT + "logs > max_files: changes from 10 to 3; applies from the task's next start"}},
		"no logs": {[]string{"user ", "logs { disabled = true }\nuser "},
			[]string{"destructive " + inT + "logs > disabled: changes from false to true" + process}},
		"another group": {[]string{`group "other" {`, "group \"other\" {\ncount = 2"},
			[]string{`in place group "other": changes; this allocation runs another group`}},
		"env": {[]string{`A = "hunter2"`, `A = "hunter3"`},
			[]string{"destructive " + inT + `env: "A" changes` + process}},
		"config": {[]string{`args    = ["hunter2"]`, ""},
			[]string{"destructive " + inT + `config: "args" is removed` + process}},
		"user": {[]string{"nobody", "root"},
			[]string{"destructive " + inT + `user: changes from "nobody" to "root"` + process}},
		"memory": {[]string{"user ", "resources { memory = 7 }\nuser "},
			[]string{"destructive " + inT + "resources > memory: changes from 300 to 7" + process}},
		"port": {[]string{"to = 8080", "to = 80"},
			[]string{`destructive group "g" > network > port "admin" > to: changes from 8080 to 80` + ports}},
		"new port": {[]string{`port "http" {}`, "port \"http\" {}\nport \"x\" {}"},
			[]string{`destructive group "g" > network > port "x": is added` + ports}},
		"new task": {[]string{`task "u"`, `task "v"`}, []string{`destructive group "g" > task "u": is removed` + place,
			`destructive group "g" > task "v": is added` + place}},
		"group": {[]string{`group "g"`, `group "h"`},
			[]string{`destructive group "g": is removed; the running allocation belongs to this group`,
				`in place group "h": is added; this allocation runs another group`}},
		"job": {[]string{`job "j"`, `job "k"`},
			[]string{`destructive job > id: changes from "j" to "k"; changes the job's identity; needs a new allocation`,
				`destructive job > name: changes from "j" to "k"` + process}},
		"type": {[]string{"meta {", "type = \"batch\"\nmeta {"}, nil},
		"audience": {[]string{`"vault.io"`, `"x"`},
			[]string{"destructive " + inT + `identity "vault" > aud: changes from ["vault.io"] to ["x"]` + token}},
		"lifecycle": {[]string{`hook = "prestart"`, `hook = "poststart"`},
			[]string{`destructive group "g" > task "u" > lifecycle > hook: changes from "prestart" to "poststart"; decides ` +
				`the order of the tasks; needs new processes of all tasks`}},
	} {
		t.Run(name, func(t *testing.T) {
			got := changed(t, c.replace...)
			if name == "type" { // it brings other defaults with it
				if len(got) == 0 || !strings.HasPrefix(got[0], `destructive job > type: changes from "service" to "batch"`) {
					t.Errorf("got %q, want the type first", got)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if text := strings.Join(got, "\n"); strings.Contains(text, "hunter") {
				t.Errorf("a secret is shown: %s", text)
			}
		})
	}
}

// TestChangesOfOddJobs: what is no canonical job is compared all the same.
func TestChangesOfOddJobs(t *testing.T) {
	name := func(s string) *string { return &s }
	odd := &api.Job{TaskGroups: []*api.TaskGroup{nil, {},
		{Name: name("g"), Tasks: []*api.Task{nil, {Name: "t"}, {Name: "t", Driver: "x"}}}}}
	other := &api.Job{TaskGroups: []*api.TaskGroup{{Name: name("g"), Tasks: []*api.Task{{Name: "t"}, {Name: "t"}, nil}},
		{}}}
	got := jobdiff.Changes(odd, other, "g")
	if len(got) != 1 || got[0].Path != `group "g" > task "t" #2 > driver` || got[0].InPlace {
		t.Errorf("changes = %v, want the second task's driver alone", got)
	}
	for _, c := range []struct{ old, new *api.Job }{{nil, odd}, {odd, nil}} {
		if got := jobdiff.Changes(c.old, c.new, ""); len(jobdiff.Destructive(got)) != 1 {
			t.Errorf("Changes with no job = %v, want one that is destructive", got)
		}
	}
	if got := jobdiff.Changes(nil, nil, ""); got != nil {
		t.Errorf("Changes(nil, nil) = %v", got)
	}
	// Read from HCL or from JSON, a config is the same.
	a := &api.Job{TaskGroups: []*api.TaskGroup{{Tasks: []*api.Task{{Config: map[string]any{"n": 1,
		"args": []string{"x"}}}}}}}
	b := &api.Job{TaskGroups: []*api.TaskGroup{{Tasks: []*api.Task{{Config: map[string]any{"n": 1.0, "args": []any{"x"}},
		Env: map[string]string{}}}}}}
	if got := jobdiff.Changes(a, b, ""); got != nil {
		t.Errorf("Changes of the same config = %v", got)
	}
}

// TestDestructive picks out and leaves the list alone.
func TestDestructive(t *testing.T) {
	list := []jobdiff.Change{{Path: "a", InPlace: true}, {Path: "b"}, {Path: "c", InPlace: true}}
	if got := jobdiff.Destructive(list); len(got) != 1 || got[0].Path != "b" || list[0].Path != "a" || len(list) != 3 {
		t.Errorf("Destructive = %v of %v", got, list)
	}
}

// TestChangesAreShort: long names and long lists don't make long lines.
func TestChangesAreShort(t *testing.T) {
	old, long := mustParse(t, before), mustParse(t, before)
	task := long.TaskGroups[0].Tasks[0]
	task.User = strings.Repeat("u", 1000)
	task.KillTimeout = new(time.Hour)
	for range 100 {
		task.Env[strings.Repeat("E", len(task.Env)+100)] = "x"
		task.Identities[0].Audience = append(task.Identities[0].Audience, "x")
	}
	for _, c := range jobdiff.Changes(old, long, "g") {
		if len(c.String()) > 1000 {
			t.Errorf("a line of %d bytes: %s", len(c.String()), c)
		}
	}
}

// TestDefaultsAreNoChanges: a job that an earlier version of this program has saved lacks some defaults. The job file
// has not changed, so nothing of the allocation does.
func TestDefaultsAreNoChanges(t *testing.T) {
	const file = `job "j" {
  reschedule { attempts = 1 }
  group "g" {
    service {
      name = "${JOB}-s"
      provider = "nomad"
      check {
        type     = "tcp"
        port     = "1"
        interval = "2s"
        timeout  = "1s"
      }
    }
    task "t" {
      driver       = "raw_exec"
      kill_timeout = "0s"
      config { command = "true" }
      service {
        name     = "s"
        provider = "nomad"
      }
      identity {
        aud           = ["bank.example.org"]
        file          = true
        change_mode   = "signal"
        change_signal = "sighup"
      }
      identity {
        name          = "bank"
        aud           = ["bank.example.org"]
        change_mode   = "signal"
        change_signal = "sighup"
      }
    }
  }
}`
	parse := func() *api.Job {
		return must.Get(jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(file), Dir: t.TempDir(),
			Audience: "nomadproject.io"}))(t)
	}
	saved, now := parse(), parse()
	saved.Reschedule = &api.ReschedulePolicy{Attempts: new(1)}
	group, task := saved.TaskGroups[0], saved.TaskGroups[0].Tasks[0]
	group.Services[0].Name, group.Services[0].Checks[0].Name = "${JOB}-s", ""
	task.KillTimeout = new(time.Duration(0))
	task.Services[0].TaskName = ""
	task.Identity.Name, task.Identity.Audience, task.Identity.ChangeSignal = "", []string{"bank.example.org"}, "sighup"
	task.Identities[0].ChangeSignal = "sighup"
	before := must.Get(json.Marshal(saved))(t)
	check := func(saved *api.Job) {
		for _, c := range append(jobdiff.Changes(saved, now, "g"), jobdiff.Changes(now, saved, "g")...) {
			t.Error(c)
		}
	}
	check(saved)
	if after := must.Get(json.Marshal(saved))(t); string(after) != string(before) {
		t.Errorf("the saved job has become %s", after)
	}
	task.Identities, task.Identity = append(task.Identities, task.Identity), nil // as some wrote it in JSON
	check(saved)
	now.TaskGroups[0].Tasks[0].Identities[0].Audience = []string{"another"}
	if got := jobdiff.Destructive(jobdiff.Changes(saved, now, "g")); len(got) != 1 {
		t.Errorf("an identity with another audience: %v", got)
	}
}

// TestFilesOfATask: a task needs a new process alone for another template or artifact, also its first or its last.
func TestFilesOfATask(t *testing.T) {
	with := func(texts ...string) *api.Job {
		task := &api.Task{Name: "t"}
		for _, text := range texts {
			task.Templates = append(task.Templates, &api.Template{EmbeddedTmpl: &text})
			task.Artifacts = append(task.Artifacts, &api.TaskArtifact{GetterSource: &text})
		}
		return &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{task}}}}
	}
	for _, c := range []struct{ old, new *api.Job }{
		{with("a"), with("b")}, {with("a"), with("a", "b")}, {with(), with("a")}, {with("a"), with()},
	} {
		changes := jobdiff.Changes(c.old, c.new, "g")
		for _, change := range changes {
			if change.InPlace || change.Task != "t" {
				t.Errorf("%+v, want a change that needs a process of the task", change)
			}
		}
		if len(changes) != 2 {
			t.Errorf("%v, want one of each kind", changes)
		}
	}
}
