package jobspec_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// readable returns a folder with a file for each content.
func readable(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// TestMessagesQuoteNoFile: neither an error nor a finding says what a function read, or what was made of that.
func TestMessagesQuoteNoFile(t *testing.T) {
	dir := readable(t, map[string]string{"secret": "hunter2 ${x} (",
		"template": "${nope(\"hunter2\")} ${base64decode(\"hunter2!\")}"})
	for name, body := range map[string]string{
		"a duration":         inTask(`kill_timeout = file("secret")`),
		"an argument":        inTask(`user = timeadd(file("secret"), "1h")`),
		"a derived argument": inTask(`user = base64decode("!${upper(file("secret"))}")`),
		"a pattern":          inTask(`user = regex(file("secret"), "a")`),
		"a path":             inTask(`user = file(file("secret"))`),
		"a pattern of paths": inTask(`user = fileset(".", "[${file("secret")}")`),
		"a number":           inTask(`user = parseint(file("secret"), 10)`),
		"from a local":       "locals {\na = [file(\"secret\")]\n}\n" + inTask(`user = cidrhost(local.a[0], 1)`),
		"JSON":               inTask(`user = jsondecode(file("secret"))`),
		"a name of a block": inTask("dynamic \"volume_mount\" {\nfor_each = [file(\"secret\")]\nlabels = " +
			"[file(\"secret\")]\ncontent {\n}\n}"),
		"a template": inTask(`user = templatefile("template", {})`),
		"a key":      inTask(`env = { (file("secret")) = [1] }`),
		"a validation": "variable \"v\" {\ndefault = 1\nvalidation {\ncondition = var.v == 2\nerror_message = " +
			"file(\"secret\")\n}\n}\n" + inTask(``),
		"a type of job": "job \"j\" {\ntype = file(\"secret\")\ngroup \"g\" {\ntask \"t\" {\ndriver = " +
			"\"raw_exec\"\n}\n}\n}\n",
		"a derived driver": "job \"j\" {\ngroup \"g\" {\ntask \"t\" {\ndriver = substr(file(\"secret\"), 0, 7)\n}\n}\n}\n",
		"a name of a group": "job \"j\" {\ndynamic \"group\" {\nfor_each = [1, 2]\nlabels = [file(\"secret\")]\ncontent " +
			"{\ntask \"t\" {\ndriver = \"x\"\n}\n}\n}\n}\n",
	} {
		read := &jobspec.FromFiles{}
		job, err := jobspec.Parse(jobspec.Config{Filename: "job.hcl", Dir: dir, Body: []byte(body), FromFiles: read})
		message := fmt.Sprint(err)
		if err == nil {
			_, findings, err := review.Job(job, review.Host{Drivers: drivers.NewRegistry()})
			message = read.Mask(fmt.Sprint(findings, err))
		}
		if message == "[] <nil>" || strings.Contains(strings.ToLower(message), "hunter2") {
			t.Errorf("%s: %s", name, message)
		}
	}
}

// TestMask: what can be told from the words around it is masked; a letter inside a word can't.
func TestMask(t *testing.T) {
	read := &jobspec.FromFiles{Texts: []string{"a", "lines", "two\nlines", "secret"}}
	const message = `a task "a": secretly "two\nlines" and two` + "\nlines"
	same.As(t, `a task "(from a file)": (from a file)ly "(from a file)" and (from a file)`, read.Mask(message))
}

// TestFilesMayMakeAnyPartOfAJob: hiding what was read takes nothing from what can be made of it.
func TestFilesMayMakeAnyPartOfAJob(t *testing.T) {
	dir := readable(t, map[string]string{"settings.json": `{"names": ["a", "b"], "on": true, "n": 3, "env": {"K": "v"}, ` +
		`"timeout": "7s"}`, "name": "t1"})
	const body = `
locals {
  s = jsondecode(file("settings.json"))
}
job "j" {
  priority = local.s.on ? 10 * local.s.n : 1
  meta     = { for i, name in local.s.names : name => "${i}-${upper(name)}" if name != "b" }
  dynamic "group" {
    for_each = local.s.names
    labels   = [group.value]
    content {
      task "t" {
        driver       = "raw_exec"
        kill_timeout = local.s.timeout
        env          = local.s.env
        config {
          args = local.s.names[*]
          it   = {t1 = "found"}[file("name")]
        }
      }
      dynamic "task" {
        for_each = ["x"]
        labels   = [file("name")]
        content {
          driver = "raw_exec"
        }
      }
    }
  }
}
`
	job := must.Get(jobspec.Parse(jobspec.Config{Filename: "job.hcl", Dir: dir, Body: []byte(body)}))(t)
	first := job.TaskGroups[0].Tasks[0]
	got := fmt.Sprintln(*job.Priority, job.Meta, *job.TaskGroups[1].Name, first.KillTimeout, first.Env, first.Config,
		job.TaskGroups[0].Tasks[1].Name)
	if want := "30 map[a:0-A] b 7s map[K:v] map[args:[a b] it:found] t1\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
