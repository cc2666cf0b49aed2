package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

// machinePolicy lets the task "server" use the machine's metadata.
const machinePolicy = `
node { policy = "read" }
task "server" { capabilities = ["node:write"] }
`

// TestATaskSetsMetadata: a task whose policy allows it reads the machine and sets its metadata, which the next process
// of a task has where the job file says ${meta.…}; another task may read them, and one without the policy nothing.
func TestATaskSetsMetadata(t *testing.T) {
	t.Parallel()
	job := strings.Replace(testJob, `TASKAPI_TEST_SERVE = `, `RACK = "in ${meta.rack}"`+"\n\t\tTASKAPI_TEST_SERVE = ", 1)
	policy := writeFile(t, filepath.Join(t.TempDir(), "policy.hcl"), machinePolicy)
	r := startRun(t, shortDir(t), job, "-o", "allow_shared_user=true", "--policy", policy)
	r.operator()
	task := r.task()
	rack := func() string {
		// of one that has just ended: none
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", taskPID(t, r, "server")))
		return variable(string(environ), "RACK")
	}
	r.eventually("the reference without metadata", func() bool { return rack() == "in ${meta.rack}" })
	set := &api.NodeMetaApplyRequest{Meta: map[string]*string{"rack": new("r7")}}
	if meta, err := task.Nodes().Meta().Apply(set, nil); err != nil || meta.Meta["rack"] != "r7" {
		t.Fatalf("apply = %+v, %v", meta, err)
	}
	nodes, _, err := task.Nodes().List(nil)
	if err != nil || len(nodes) != 1 {
		t.Fatalf("nodes = %v, %v", nodes, err)
	}
	if node, _, err := task.Nodes().Info(nodes[0].ID, nil); err != nil || node.Meta["rack"] != "r7" {
		t.Errorf("node = %+v, %v", node, err)
	}
	other := r.client(r.allocDir("other", "secrets", "api.sock"), r.file("other", "secrets", "nomad_token"))
	if meta, err := other.Nodes().Meta().Read("", nil); err != nil || meta.Meta["rack"] != "r7" {
		t.Errorf("another task reads %+v, %v", meta, err)
	}
	if _, err := other.Nodes().Meta().Apply(set, nil); err == nil ||
		!strings.Contains(err.Error(), "403 (Permission denied)") {
		t.Errorf("another task sets: %v", err)
	}

	alloc := asked(task.Allocations().Info(testAllocID, nil))(t)
	must.OK(t, task.Allocations().Restart(alloc, "server", nil))
	r.eventually("the metadata in the server's next process", func() bool { return rack() == "in r7" })
}
