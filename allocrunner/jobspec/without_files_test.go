package jobspec_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/must"
)

// oneTask is the rest of a job file.
const oneTask = `
  group "g" {
    task "t" {
      driver = "raw_exec"
    }
  }
}`

// TestNoFiles: a text from somebody else reads no file of this machine, whatever function names it, and learns of no
// path.
func TestNoFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	must.OK(t, os.WriteFile(path, []byte("hunter2"), 0o600))
	for _, call := range []string{
		`file("PATH")`, `filebase64("PATH")`, `fileexists("PATH")`, `fileset("/", "*")`, `templatefile("PATH", {})`,
		`abspath(".")`, `pathexpand("~")`,
		`try(file("PATH"), "none")`, `"${file("PATH")}"`, `can(file("PATH"))`,
	} {
		call = strings.ReplaceAll(call, "PATH", path)
		body := "job \"x\" {\n  meta = { a = \"${" + call + "}\" }\n" + oneTask
		job, err := jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(body), NoFiles: true})
		if err == nil && (strings.HasPrefix(call, "try") && job.Meta["a"] == "none" || strings.HasPrefix(call, "can") &&
			job.Meta["a"] == "false") {
			continue // they see an error, too
		}
		if !errors.Is(err, jobspec.ErrInvalid) ||
			!strings.Contains(err.Error(), "files of this machine can't be used here") ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, %v; want that files can't be used", call, job, err)
		}
	}
}

// TestVarText: the text of variables is as good as a file of them, and a mistake in it has its place.
func TestVarText(t *testing.T) {
	const body = `variable "n" { type = number }
job "x" {
  meta = { a = "${var.n + 1}" }
` + oneTask
	config := jobspec.Config{Filename: "job.hcl", Body: []byte(body), VarText: "n = 41\n"}
	job, err := jobspec.Parse(config)
	if err != nil || job.Meta["a"] != "42" {
		t.Fatalf("job = %+v, %v; want the variable's value", job, err)
	}
	config.Vars = []string{"n=1"}
	if job, err = jobspec.Parse(config); err != nil || job.Meta["a"] != "2" {
		t.Errorf("with -var: %+v, %v; want that to win", job, err)
	}
	for text, want := range map[string]string{
		"m = 1\n": "variables:1", "n = \n": "variables:1", "n = file(\"/etc/passwd\")\n": "unction",
		"n = 1\x00": "not UTF-8 text",
	} {
		if _, err := jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(body), VarText: text}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("variables %q: %v, want %q", text, err, want)
		}
	}
	json := jobspec.Config{Filename: "job.json", Body: []byte(`{"Job": {"ID": "x"}}`), VarText: "n = 1\n"}
	if _, err := jobspec.Parse(json); !errors.Is(err, jobspec.ErrInvalid) {
		t.Errorf("variables for JSON: %v, want an error", err)
	}
}

// TestAsWritten: nothing is set that the text does not say.
func TestAsWritten(t *testing.T) {
	const body = "job \"x\" {\n" + oneTask
	for asWritten, want := range map[bool]bool{true: true, false: false} {
		job := must.Get(jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(body), AsWritten: asWritten,
			Audience: "a"}))(t)
		if unset := job.Priority == nil && job.TaskGroups[0].RestartPolicy == nil; unset != want {
			t.Errorf("as written %v: priority %v, restart %v", asWritten, job.Priority, job.TaskGroups[0].RestartPolicy)
		}
	}
}
