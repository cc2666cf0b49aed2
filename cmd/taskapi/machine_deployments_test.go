package main

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// teamJob has two groups, whose allocations are healthy at once.
const teamJob = `job "team" {
  update {
    min_healthy_time  = "0s"
    healthy_deadline  = "5m"
    progress_deadline = "6m"
  }
  group "a" {
    count = 2
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
  group "b" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}
`

// TestAgentsDeployments: a registration has one deployment, which is successful when all allocations of the job are
// healthy. So have those that a later count, or another group, adds.
func TestAgentsDeployments(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	client := a.client()
	job := parsedJob(t, teamJob)
	deployed := func(version uint64, desired map[string]int) *api.Deployment {
		t.Helper()
		made := asked(client.Jobs().Register(job, nil))(t)
		var d *api.Deployment
		until(t, a.taskapiProcess, "deploys the job", func() bool {
			e, _, err := client.Evaluations().Info(made.EvalID, nil)
			if err != nil || e.Status == api.EvalStatusFailed {
				t.Fatalf("evaluation %+v, %v", e, err)
			}
			if e.DeploymentID == "" {
				return false
			}
			d, _, err = client.Deployments().Info(e.DeploymentID, nil)
			return err == nil && d.Status == api.DeploymentStatusSuccessful
		})
		if d.JobVersion != version || len(d.TaskGroups) != len(desired) {
			t.Errorf("version %d has %d groups, want version %d with %d", d.JobVersion, len(d.TaskGroups), version,
				len(desired))
		}
		total := 0
		for group, want := range desired {
			total += want
			if got := d.TaskGroups[group]; got == nil || got.DesiredTotal != want || got.PlacedAllocs != want ||
				got.HealthyAllocs != want {
				t.Errorf("group %q has %+v, want %d healthy allocations", group, got, want)
			}
		}
		allocs, _, err := client.Deployments().Allocations(d.ID, nil)
		if err != nil || len(allocs) != total {
			t.Errorf("the deployment has %d allocations, want %d: %v", len(allocs), total, err)
		}
		if latest, _, err := client.Jobs().LatestDeployment("team", nil); err != nil || latest.ID != d.ID {
			t.Errorf("the latest deployment is %+v, want %s: %v", latest, d.ID, err)
		}
		return d
	}
	first := deployed(0, map[string]int{"a": 2, "b": 1})
	job.TaskGroups[0].Count = new(3)
	deployed(1, map[string]int{"a": 3, "b": 1})
	all, _, err := client.Jobs().Deployments("team", false, nil)
	if err != nil || len(all) != 2 || all[0].JobVersion != 1 || all[1].ID != first.ID {
		t.Errorf("the deployments are %+v, %v", all, err)
	}
	versions, diffs, _, err := client.Jobs().Versions("team", true, nil)
	if err != nil || len(versions) != 2 || len(diffs) != 1 || len(diffs[0].Fields) != 0 || len(diffs[0].TaskGroups) != 1 ||
		diffs[0].TaskGroups[0].Fields[0].Name != "count" {
		t.Errorf("versions %+v, with the differences %+v, want 2 with another count: %v", versions, diffs, err)
	}
	stubs := asked(client.Jobs().Allocations("team", true, nil))(t)
	for _, stub := range stubs {
		if stub.JobVersion != 1 {
			t.Errorf("allocation %s has version %d", stub.Name, stub.JobVersion)
		}
	}
	if err := setUnhealthy(client, all[0].ID, stubOf(t, client, "team.a[0]")); answeredStatus(err) != 400 {
		t.Errorf("a change of a deployment that is over: %v", err)
	}

	more := *job.TaskGroups[1]
	more.Name = new("c")
	job.TaskGroups = append(job.TaskGroups, &more)
	job.TaskGroups[0].Count = new(1)
	deployed(2, map[string]int{"a": 1, "b": 1, "c": 1})
	if now := strings.Join(a.allocs("team"), "\n"); strings.Count(now, "running ") != 3 ||
		strings.Count(now, "complete ") != 2 {
		t.Errorf("the job has the allocations %q, want three that run", now)
	}

	job.TaskGroups[1].Tasks[0].Config["command"] = "/no/such/program"
	job.TaskGroups[1].RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	made := asked(client.Jobs().Register(job, nil))(t)
	until(t, a.taskapiProcess, "fails the deployment", func() bool {
		e, _, err := client.Evaluations().Info(made.EvalID, nil)
		if err != nil || e.DeploymentID == "" {
			return false
		}
		d, _, err := client.Deployments().Info(e.DeploymentID, nil)
		return err == nil && d.Status == api.DeploymentStatusFailed && d.JobVersion == 3
	})
}

// TestAgentPlansTheJob: a plan counts the allocations of each group, and has each difference once.
func TestAgentPlansTheJob(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	client := a.client()
	job := parsedJob(t, teamJob)
	plan := func(a, b api.DesiredUpdates) *api.JobPlanResponse {
		t.Helper()
		p := asked(client.Jobs().Plan(job, true, nil))(t)
		if strings.Contains(p.Warnings, "count") {
			t.Errorf("warnings %q", p.Warnings)
		}
		if got := *p.Annotations.DesiredTGUpdates["a"]; got != a {
			t.Errorf("group a: %+v, want %+v", got, a)
		}
		if got := *p.Annotations.DesiredTGUpdates["b"]; got != b {
			t.Errorf("group b: %+v, want %+v", got, b)
		}
		return p
	}
	if p := plan(api.DesiredUpdates{Place: 2}, api.DesiredUpdates{Place: 1}); p.Diff.Type != "Added" {
		t.Errorf("the difference is %+v", p.Diff)
	}
	a.register(job)
	if p := plan(api.DesiredUpdates{Ignore: 2}, api.DesiredUpdates{Ignore: 1}); p.Diff.Type != "None" ||
		p.JobModifyIndex == 0 {
		t.Errorf("the plan is %+v", p)
	}
	job.TaskGroups[0].Count = new(1)
	job.TaskGroups[1].Tasks[0].Config["args"] = []string{"1001"}
	p := plan(api.DesiredUpdates{Stop: 1, InPlaceUpdate: 1}, api.DesiredUpdates{DestructiveUpdate: 1})
	if len(p.Diff.Fields) != 0 || len(p.Diff.TaskGroups) != 2 {
		t.Fatalf("the difference is %+v", p.Diff)
	}
	groupA, groupB := p.Diff.TaskGroups[0], p.Diff.TaskGroups[1]
	if len(groupA.Fields) != 1 || groupA.Fields[0].Old != "2" || groupA.Fields[0].New != "1" || len(groupA.Tasks) != 0 {
		t.Errorf("group a: %+v", groupA)
	}
	if len(groupB.Tasks) != 1 || groupB.Tasks[0].Name != "t" || groupB.Tasks[0].Fields[0].Name != "config" {
		t.Errorf("group b: %+v", groupB)
	}
	job.TaskGroups = job.TaskGroups[:1]
	gone, _, err := client.Jobs().Plan(job, true, nil)
	if err != nil || gone.Annotations.DesiredTGUpdates["b"].Stop != 1 || gone.Diff.TaskGroups[1].Type != "Deleted" {
		t.Errorf("without a group: %+v, %v", gone, err)
	}
}

func setUnhealthy(client *api.Client, deployment, alloc string) error {
	_, _, err := client.Deployments().SetAllocHealth(deployment, nil, []string{alloc}, nil)
	return err
}

// stubOf returns the ID of a job's allocation.
func stubOf(t *testing.T, client *api.Client, name string) string {
	t.Helper()
	all, _, err := client.Allocations().List(&api.QueryOptions{Filter: `Name == "` + name + `"`})
	if err != nil || len(all) != 1 {
		t.Fatalf("%d allocations %s, %v", len(all), name, err)
	}
	return all[0].ID
}
