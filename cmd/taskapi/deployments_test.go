package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

// deployedJob takes a moment to end, and longer to be healthy.
const deployedJob = `
variable "text" {
  default = "0"
}
variable "healthy" {
  default = "50ms"
}
job "web" {
  group "g" {
    update {
      min_healthy_time  = var.healthy
      healthy_deadline  = "5m"
    }
    task "t" {
      driver = "raw_exec"
      env {
        TEXT = var.text
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' INT; while :; do sleep 0.1; done"]
      }
    }
  }
}
`

// stockClient returns what a client has that was given the operator's token once, as the stock command line and levant
// are.
func stockClient(t *testing.T, p taskapiProcess, dir string) *api.Client {
	t.Helper()
	var client *api.Client
	until(t, p, "the operator's socket answers", func() (ok bool) {
		var err error
		if client, err = operatorOf(dir, testAllocID); err != nil {
			return false
		}
		_, _, err = client.Allocations().Info(testAllocID, nil)
		return err == nil
	})
	t.Cleanup(client.Close)
	return client
}

// watchAsLevantDoes registers a job, waits until its evaluation names a deployment, and follows that to its end. No
// request may fail meanwhile.
func watchAsLevantDoes(t *testing.T, client *api.Client, job *api.Job) *api.Deployment {
	t.Helper()
	registered := asked(client.Jobs().Register(job, nil))(t)
	eval, _, err := client.Evaluations().Info(registered.EvalID, nil)
	if err != nil || eval.Status != api.EvalStatusComplete || eval.DeploymentID == "" {
		t.Fatalf("the registration's evaluation is %+v, %v; want it complete, with a deployment", eval, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	q := (&api.QueryOptions{WaitIndex: 1, AllowStale: true, WaitTime: 5 * time.Second}).WithContext(ctx)
	for {
		d, meta, err := client.Deployments().Info(eval.DeploymentID, q)
		switch {
		case err != nil:
			t.Fatalf("the deployment can't be followed: %v", err)
		case meta.LastIndex <= q.WaitIndex: // the wait was over
			continue
		case d.Status != api.DeploymentStatusRunning:
			return d
		}
		q.WaitIndex = meta.LastIndex
	}
}

// changedJob returns the job that runs, with another value in its task's environment.
func changedJob(t *testing.T, client *api.Client, text string) *api.Job {
	t.Helper()
	job := asked(client.Jobs().Info("web", nil))(t)
	job.TaskGroups[0].Tasks[0].Env["TEXT"] = text
	return job
}

// TestDeployments follows new versions of a job as stock clients do: those that need new processes, in the place of
// which the client finds others on the same socket with the same token, and one in place.
func TestDeployments(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	p := startProcess(t, dir, jobFile(t, deployedJob))
	client := stockClient(t, p, dir)
	first, _, err := client.Jobs().LatestDeployment("web", nil)
	if err != nil || first == nil || first.JobVersion != 0 {
		t.Fatalf("the first version's deployment is %+v, %v", first, err)
	}
	before, _, err := client.Allocations().Info(testAllocID, nil)
	if err != nil || before.DeploymentID != first.ID {
		t.Fatalf("the allocation names deployment %q, want %q (%v)", before.DeploymentID, first.ID, err)
	}
	const replacements = 3
	for n := range uint64(replacements) {
		d := watchAsLevantDoes(t, client, changedJob(t, client, fmt.Sprint(n+1)))
		if d.Status != api.DeploymentStatusSuccessful || d.JobVersion != n+1 || d.TaskGroups["g"].HealthyAllocs != 1 {
			t.Fatalf("deployment %+v of group %+v, want version %d successful\n%s", d, d.TaskGroups["g"], n+1, p.out)
		}
		alloc, _, err := client.Allocations().Info(testAllocID, nil)
		if err != nil || alloc.DeploymentID != d.ID || *alloc.Job.Version != n+1 || alloc.CreateTime == before.CreateTime ||
			alloc.ModifyIndex <= before.ModifyIndex {
			t.Errorf("the allocation after it: deployment %q, version %d, index %d (%v); want another, of that deployment, "+
				"above %d",
				alloc.DeploymentID, *alloc.Job.Version, alloc.ModifyIndex, err, before.ModifyIndex)
		}
		before = alloc
	}
	inPlace := changedJob(t, client, fmt.Sprint(replacements))
	*inPlace.TaskGroups[0].Update.MinHealthyTime = 300 * time.Millisecond
	d := watchAsLevantDoes(t, client, inPlace)
	if d.Status != api.DeploymentStatusSuccessful || d.JobVersion != replacements+1 ||
		time.Duration(d.ModifyTime-d.CreateTime) < 300*time.Millisecond {
		t.Errorf("in place: %+v after %v; want it successful, not because the version before was healthy", d,
			time.Duration(d.ModifyTime-d.CreateTime))
	}
	if alloc, _, err := client.Allocations().Info(testAllocID, nil); err != nil || alloc.CreateTime != before.CreateTime {
		t.Errorf("in place another allocation began: %v", err)
	}
	reverted := asked(client.Jobs().Revert("web", 1, nil, nil, "", ""))(t) // a version of before replacements
	eval, _, err := client.Evaluations().Info(reverted.EvalID, nil)
	if err != nil || eval.DeploymentID == "" {
		t.Errorf("the evaluation of a revert is %+v, %v", eval, err)
	}
	all := asked(client.Jobs().Deployments("web", true, nil))(t)
	var got []string
	for _, d := range all {
		got = append(got, fmt.Sprint(d.JobVersion))
	}
	slices.Sort(got)
	if want := "0 1 2 3 4 5"; strings.Join(got, " ") != want {
		t.Errorf("the deployments are of versions %v, want %s", got, want)
	}
	endsOf(t, p, syscall.SIGTERM)
}

// TestADeploymentOutlivesItsTaskapi: a deployment that runs is followed on by the next taskapi, even after a SIGKILL,
// and what has become of earlier ones is known to it.
func TestADeploymentOutlivesItsTaskapi(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, deployedJob)
	p := startProcess(t, dir, file, "-var", "healthy=1s")
	client := stockClient(t, p, dir)
	first := asked(client.Jobs().LatestDeployment("web", nil))(t)
	job := changedJob(t, client, "0")
	*job.Priority = 77
	asked(client.Jobs().Register(job, nil))(t)
	latest, _, err := client.Jobs().LatestDeployment("web", nil)
	if err != nil || latest.ID == first.ID || latest.Status != api.DeploymentStatusRunning {
		t.Fatalf("deployment %+v, %v; want another than %s, which runs", latest, err, first.ID)
	}
	must.OK(t, p.Process.Kill())
	_ = p.Wait() // it was killed
	p = startProcess(t, dir, jobFile(t, strings.Replace(deployedJob, `job "web" {`, "job \"web\" {\n  priority = 77", 1)),
		"-var", "healthy=1s")
	client = stockClient(t, p, dir)
	until(t, p, "successful", func() bool {
		d, _, err := client.Deployments().Info(latest.ID, nil)
		if err != nil {
			t.Fatalf("the deployment is gone: %v", err)
		}
		return d.Status == api.DeploymentStatusSuccessful
	})
	if d, _, err := client.Deployments().Info(first.ID, nil); err != nil || d.Status == api.DeploymentStatusRunning {
		t.Errorf("the first deployment is %+v, %v", d, err)
	}
	endsOf(t, p, syscall.SIGTERM)
}
