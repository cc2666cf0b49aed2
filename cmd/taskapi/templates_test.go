package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

// templatesJob is a task that says its starts, its signals and what was rendered for it.
const templatesJob = `
job "templates" {
  group "g" {
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          say() { echo "$1 $(cat local/colour) $LEVEL" >> local/said; }
          trap 'say hup' HUP
          say up
          while :; do sleep 0.05; done
        EOT
        ]
      }
      template {
        destination   = "local/colour"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "0s"
        data          = <<-EOT
          {{- with nomadVar "nomad/jobs/templates" }}{{ .colour }}{{ end -}}
        EOT
      }
      template {
        destination = "secrets/env"
        env         = true
        data        = "LEVEL={{ env \"NOMAD_TASK_NAME\" | toUpper }}"
      }
    }
  }
}
`

// putColour writes the variable that the templates read. Its value is no argument of a process.
func putColour(t *testing.T, dir, path, colour string) {
	t.Helper()
	file := writeFile(t, filepath.Join(t.TempDir(), "colour"), colour)
	taskapi(t, "var", "put", "-data-dir", dir, "-force", path, "colour=@"+file)
}

// TestTemplatesSurviveKills kills taskapi while a task waits for a value, and later taskapi, its keeper, and both,
// under a task with a template of each change_mode. A change that comes meanwhile, and one that comes afterwards, is
// rendered, and the change mode happens once. A value that has not changed does not reach the task again.
func TestTemplatesSurviveKills(t *testing.T) {
	t.Parallel()
	for mode, acted := range map[string]string{"signal": "hup", "restart": "up", "script": "script"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			job := strings.Replace(templatesJob, `change_mode   = "signal"
        change_signal = "SIGHUP"`, `change_mode   = "`+mode+`"
        change_signal = "SIGHUP"
        change_script {
          command = "/bin/sh"
          args    = ["-c", "echo script $(cat local/colour) $LEVEL >> local/said"]
        }`, 1)
			job = strings.Replace(job, `task "main" {`, `restart {
      attempts = 10
      delay    = "0s"
    }
    task "main" {`, 1)
			file := jobFile(t, job)
			put := func(colour string) { putColour(t, dir, "nomad/jobs/templates", colour) }
			var want string
			wants := func(p taskapiProcess, line string) {
				t.Helper()
				want += line + " MAIN\n"
				var got string
				until(t, p, line, func() bool {
					text, _ := os.ReadFile(filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "main", "local", "said"))
					got = string(text)
					return len(got) >= len(want)
				})
				if got != want {
					t.Fatalf("it said %q, want %q", got, want)
				}
			}
			p := startProcess(t, dir, file)
			waits := func() bool { return strings.Contains(p.out.String(), "Missing: nomad.var.block(") }
			until(t, p, "the task waits", waits)
			kill(t, p)
			p = startProcess(t, dir, file)
			until(t, p, "the task waits again", waits)
			put("one")
			wants(p, "up one")
			kill(t, p)
			p = startProcess(t, dir, file)
			until(t, p, "resumed", func() bool { return strings.Contains(p.out.String(), "Resuming") })
			put("colour2")
			wants(p, acted+" colour2")
			if strings.Contains(p.out.String(), "colour2") {
				t.Errorf("the value of a variable is in the output:\n%s", p.out)
			}

			kill(t, p)
			put("three")
			p = startProcess(t, dir, file)
			wants(p, acted+" three")
			put("four")
			wants(p, acted+" four")

			killKeeper(t, dir) // and with it the task, which its restart policy starts again
			wants(p, "up four")
			put("five")
			wants(p, acted+" five")

			kill(t, p)
			killKeeper(t, dir)
			put("six")
			p = startProcess(t, dir, file)
			wants(p, "up six")
			put("seven")
			wants(p, acted+" seven")
			must.OK(t, p.Process.Signal(os.Interrupt))
			_ = p.Wait()
		})
	}
}

// TestTemplatesReadWhatTheirTaskMay: as over the API, the policy decides.
func TestTemplatesReadWhatTheirTaskMay(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	for path, may := range map[string]bool{"nomad/jobs/templates": true, "nomad/jobs/other": false, "shared/x": false} {
		putColour(t, dir, path, "blue")
		job := strings.ReplaceAll(templatesJob, `nomadVar "nomad/jobs/templates"`, `nomadVar "`+path+`"`)
		job = strings.ReplaceAll(job, "while :", "exit 0; while :")
		job = strings.ReplaceAll(job, `job "templates" {`, "job \"templates\" {\n  type = \"batch\"")
		p := startCommand(t, self(t), "run", "-data-dir", dir, jobFile(t, job))
		err := p.Wait()
		denied := strings.Contains(p.out.String(), "nomad.var.block("+path+"@default.global): Permission denied")
		if (err == nil) != may || denied == may {
			t.Errorf("%s: %v\n%s", path, err, p.out)
		}
	}
}

// isolatedTemplates has a task that makes the source of another's template, which has a user of its own.
const isolatedTemplates = `
job "isolated" {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "source" {
      driver = "raw_exec"
      lifecycle { hook = "prestart" }
      config {
        command = "/bin/sh"
        args    = ["-c", "echo '{{ env \"NOMAD_TASK_NAME\" }}' > ../alloc/data/x; chmod MODE ../alloc/data/x"]
      }
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "test \"$(cat local/x)\" = main && test \"$(stat -c %u local/x)\" = $(id -u)"]
      }
      template {
        source      = "../alloc/data/x"
        destination = "local/x"
        perms       = "0600"
      }
    }
  }
}
`

// TestTemplatesOfIsolatedUsers: a template's file belongs to the task's user, and its source is read with that user's
// rights.
func TestTemplatesOfIsolatedUsers(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can give tasks users of their own")
	}
	for mode, want := range map[string]string{"0644": "", "0600": "permission denied"} {
		job := jobFile(t, strings.ReplaceAll(isolatedTemplates, "MODE", mode))
		dir := shortDir(t)
		must.OK(t, os.Chmod(dir, 0o711)) // tasks of other users pass through
		p := startCommand(t, self(t), "run", "--isolate-users", "-data-dir", dir, job)
		err := p.Wait()
		if (err == nil) != (want == "") || !strings.Contains(p.out.String(), want) {
			t.Errorf("%s: %v\n%s", mode, err, p.out)
		}
	}
}
