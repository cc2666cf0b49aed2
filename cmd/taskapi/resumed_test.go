package main

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/internal/must"
	"taskapi/internal/privatefile"
)

// submitted returns the text of the job's present version, and which version that is; empty when there is none.
func submitted(t *testing.T, operator *client.Client) (text string, version uint64) {
	t.Helper()
	sdk := must.Get(operator.SDK())(t)
	job := asked(sdk.Jobs().Info("prompt", nil))(t)
	found, _, err := sdk.Jobs().Submission("prompt", int(*job.Version), nil)
	switch {
	case err != nil && strings.Contains(err.Error(), "404"):
		return "", *job.Version
	case err != nil:
		t.Fatal(err)
	}
	return found.Source, *job.Version
}

// TestWhatAResumedAgentKnows: the machine's metadata, which operators have set, and the text of the job that run was
// given, and of those that are registered each with its own version.
func TestWhatAResumedAgentKnows(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, promptJob)
	operator := client.New(datadir.Dir(dir), testAllocID)
	defer operator.Close()
	answers := func() bool {
		_, _, err := operator.Allocation(t.Context())
		return err == nil
	}

	p := startProcess(t, dir, file)
	until(t, p, "the first answers", answers)
	if text, version := submitted(t, operator); text != promptJob || version != 0 {
		t.Errorf("version %d was made from\n%s\nwant version 0 from the job file", version, text)
	}
	sdk := must.Get(operator.SDK())(t)
	rack := "r1"
	must.Get(sdk.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{Meta: map[string]*string{"rack": &rack}}, nil))(t)
	endsOf(t, p, syscall.SIGUSR1)

	p = startProcess(t, dir, file)
	until(t, p, "the second answers", answers)
	if text, _ := submitted(t, operator); text != promptJob {
		t.Errorf("after a resume the job was made from\n%s\nwant the job file", text)
	}
	sdk = must.Get(operator.SDK())(t)
	if meta, err := sdk.Nodes().Meta().Read("", nil); err != nil || meta.Meta["rack"] != rack {
		t.Errorf("metadata after a resume = %+v, %v; want rack %s", meta, err, rack)
	}
	node, _, err := sdk.Nodes().List(nil)
	if err != nil || len(node) != 1 {
		t.Fatalf("nodes = %v, %v", node, err)
	}
	if whole, _, err := sdk.Nodes().Info(node[0].ID, nil); err != nil || whole.Meta["rack"] != rack {
		t.Errorf("node after a resume = %+v, %v; want rack %s", whole, err, rack)
	}

	job := asked(sdk.Jobs().Info("prompt", nil))(t)
	*job.Priority = 77
	const text = "the text of version 1"
	asked(sdk.Jobs().RegisterOpts(job,
		&api.RegisterOptions{Submission: &api.JobSubmission{Source: text, Format: "hcl2"}}, nil))(t)
	if got, version := submitted(t, operator); got != text || version != 1 {
		t.Errorf("version %d was made from %q, want version 1 from %q", version, got, text)
	}
	job.TaskGroups[0].Tasks[0].Config["args"] = []string{"2000"} // which needs a new process
	before := begunAt(t, operator)
	const forced = "the text of what replaces it"
	if err := operator.Register(t.Context(), job, *job.JobModifyIndex, false, false); err == nil {
		t.Error("a change that needs a new process was accepted without force")
	}
	if got, version := submitted(t, operator); got != text || version != 1 {
		t.Errorf("after a refusal version %d was made from %q, want version 1 from %q", version, got, text)
	}
	asked(sdk.Jobs().RegisterOpts(job,
		&api.RegisterOptions{Submission: &api.JobSubmission{Source: forced, Format: "hcl2"}}, nil))(t)
	until(t, p, "what replaces it runs", func() bool {
		at := begunAt(t, operator)
		return at != 0 && at != before
	})
	if got, _ := submitted(t, operator); got != forced {
		t.Errorf("what has replaced it was made from %q, want %q", got, forced)
	}
	endsOf(t, p, syscall.SIGTERM)
}

// begunAt returns when the allocation began; 0 while nobody answers.
func begunAt(t *testing.T, operator *client.Client) int64 {
	t.Helper()
	alloc, _, err := operator.Allocation(t.Context())
	if err != nil {
		return 0
	}
	return alloc.CreateTime
}

// TestRestartWaitsForTheNextTaskapi: one that is about to resume the allocation does it.
func TestRestartWaitsForTheNextTaskapi(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, execJob)
	first := startProcess(t, dir, file)
	until(t, first, "both run", func() bool { return strings.Count(first.out.String(), " Started") == 2 })
	kill(t, first)
	socket := datadir.Dir(dir).OperatorSocket(testAllocID)
	inUse := func() bool {
		_, err := datadir.Dir(dir).Saved(testAllocID)
		return errors.Is(err, state.ErrInUse)
	}
	next := func() taskapiProcess { // which is stopped when it waits for the key ring
		lock := must.Get(privatefile.Acquire(filepath.Join(datadir.Dir(dir).Keyring(), "lock")))(t)
		p := startProcess(t, dir, file)
		until(t, p, "it has the allocation", inUse)
		must.OK(t, errors.Join(p.Process.Signal(syscall.SIGSTOP), unix.Waitid(unix.P_PID, p.Process.Pid, nil,
			unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil), lock.Release()))
		return p
	}
	second := next()
	for !inUse() { // it has waited for too long, on a busy machine
		kill(t, second)
		second = next()
	}
	must.OK(t, os.Remove(socket))
	looks := must.Get(net.Listen("unix", socket))(t)
	var out, errs bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(t.Context(), []string{"restart", "--data-dir", dir, testAllocID, "server"},
			testEnvironment(&out, &errs))
	}()
	for range 2 { // it looks who listens, and asks
		its := must.Get(looks.Accept())(t)
		its.Close()
	}
	// The socket goes with its listener.
	must.OK(t, errors.Join(looks.Close(), second.Process.Signal(syscall.SIGCONT)))
	if code := <-ended; code != base.ExitOK || !strings.Contains(out.String(), "server      Started") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
	taskapi(t, "stop", "--data-dir", dir)
	_ = second.Wait() // its tasks were killed by a signal, or not
}
