package main

import (
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// sleeper is a job that runs until it is stopped.
const sleeper = `
job "shop" {
  group "web" {
    service {
      name     = "web"
      provider = "nomad"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}`

// killLeft kills what a test leaves running below a directory.
func killLeft(t *testing.T, dir string) {
	t.Cleanup(func() {
		for pid := range belongingTo(dir) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	})
}

// TestOneRunGetsAName begins runs of one name at the same moment, in the foreground and in the background, with a new
// data directory and with one that others have used: one of them runs, the others are refused.
func TestOneRunGetsAName(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(shortDir(t), "d")
	killLeft(t, dir)
	file := jobFile(t, sleeper)
	for range 8 {
		type result struct {
			err error
			out *polltest.Log
		}
		ended := make(chan result)
		const processes = 4
		for i := range processes {
			p := startCommand(t, self(t), "run", "-data-dir", dir, fmt.Sprintf("-detach=%t", i%2 == 1), file)
			go func() { ended <- result{p.Wait(), p.out} }()
		}
		rest := processes
		for refused := 0; refused < processes-1; rest-- {
			r := <-ended
			exit, failed := r.err.(*exec.ExitError) //nolint:errorlint // Wait wraps only that of a hanging process
			switch {
			case failed && exit.ExitCode() == base.ExitUsage && strings.Contains(r.out.String(), "runs shop.web[0] already"):
				refused++
			case r.err != nil: // not the one in the background that got the name
				t.Fatalf("%v\n%s", r.err, r.out)
			}
		}
		running := taskapi(t, "status", "-data-dir", dir, "-t",
			`{{range .}}{{if ne .ClientStatus "complete"}}{{.Name}} {{end}}{{end}}`)
		if strings.TrimSpace(running) != "shop.web[0]" {
			t.Errorf("%q run", running)
		}
		taskapi(t, "stop", "-data-dir", dir, "shop.web[0]")
		for range rest {
			if r := <-ended; r.err != nil {
				t.Errorf("%v\n%s", r.err, r.out)
			}
		}
	}
}

// TestRunWaitsForTheExit of the taskapi that has an allocation of the name, which has ended. The test is that taskapi.
func TestRunWaitsForTheExit(t *testing.T) {
	t.Parallel()
	l := datadir.Dir(shortDir(t))
	killLeft(t, string(l))
	held := must.Get(l.Lock(testAllocID, l.Store(version), slog.New(slog.DiscardHandler)))(t)
	job := parsedJob(t, sleeper)
	alloc := &api.Allocation{
		ID: testAllocID, Name: "shop.web[0]", Namespace: "default", JobID: "shop", TaskGroup: "web", Job: job,
		DesiredStatus: api.AllocDesiredStatusStop, ClientStatus: api.AllocClientStatusComplete, ModifyIndex: 7,
	}
	must.OK(t, held.State().Put(interfaces.Saved{Alloc: alloc}))
	p := startCommand(t, self(t), "run", "-d", "-data-dir", string(l), jobFile(t, sleeper))
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	looks := 0 // after 50 looks that find the names open, the process has read the state, too
	until(t, p, "it has the name", func() bool {
		if opens(p.Process.Pid, l.Names()) {
			looks++
		}
		return len(ended) > 0 || looks > 50
	})
	must.OK(t, held.State().Put(interfaces.Saved{Alloc: alloc, Terminal: true}))
	must.OK(t, held.Close())
	if err := <-ended; err != nil || strings.Contains(p.out.String(), testAllocID) {
		t.Errorf("%v: %s", err, p.out)
	}
	taskapi(t, "stop", "--data-dir", string(l))
}

// TestNamesInEveryCommand gives an allocation's name, and its job file's, to each command that takes an allocation,
// while another allocation of the job runs.
func TestNamesInEveryCommand(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	killLeft(t, dir)
	file := jobFile(t, sleeper)
	var ids []string
	for index := range 2 {
		id := taskapi(t, "run", "-d", "-data-dir", dir, fmt.Sprintf("-index=%d", index), file)
		ids = append(ids, strings.TrimSpace(id))
	}
	for _, tc := range []struct {
		args string // NAME is the name, FILE the job file
		says string // a pattern in the output; <id> is the allocation's ID, <short> its beginning
	}{
		{"status NAME", "ID +<id>"},
		{"ps NAME", "sleep 1000"},
		{"checks NAME", ""},
		{"logs NAME", ""},
		{"fs NAME", "alloc"},
		{"events NAME", "Started"},
		{"state dump NAME", `"ID": "<id>"`},
		{"api --alloc NAME /v1/allocation/{alloc}", `"ID":"<id>"`},
		{"exec NAME t -- /usr/bin/env", "NOMAD_ALLOC_ID=<id>"},
		{"token mint --alloc NAME", `^ey`},
		{"signal -s SIGURG NAME t", "<short>"},
		{"restart NAME t", "<short>"},
		{"update NAME FILE", "<id>.* nothing to change"},
		{"takeover NAME", "<short>"},
		{"stop NAME", "Ended"},
		{"attach NAME", "Ended"},
		{"gc IDALONE", "removed <id>"}, // an earlier allocation of the name would make the name ambiguous
	} {
		for index, name := range []string{"shop.web", "shop.web[1]"} {
			args := strings.NewReplacer("NAME", name, "FILE", file, "IDALONE", ids[index]).Replace(tc.args)
			pattern := strings.NewReplacer("<id>", ids[index], "<short>", ids[index][:8]).Replace(tc.says)
			words := strings.Fields(args)
			flag := 1 // behind the command
			if slices.Contains([]string{"state", "token"}, words[0]) {
				flag++
			}
			words = slices.Insert(words, flag, "--data-dir="+dir)
			var out, errs polltest.Log
			code := cli.Run(t.Context(), words, testEnvironment(&out, &errs))
			if code != base.ExitOK || !regexp.MustCompile(pattern).MatchString(
				out.String()+errs.String()) {
				t.Errorf("taskapi %s: exit code %d, want %s in:\n%s%s", strings.Join(words, " "), code, pattern, &out, &errs)
			}
		}
	}
}
