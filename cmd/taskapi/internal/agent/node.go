package agent

import (
	"bytes"
	"fmt"
	"os"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/deployment"
)

// datacenter is where the one machine is: Nomad's default name.
const datacenter = "dc1"

// node is this machine under the names that Nomad's API has for one.
type node struct{ id, name string }

// thisNode identifies the machine. The ID is derived from its machine ID (machine-id(5)), which should not be shown as it is, so
// every run on one machine shows the same; without one, from its name.
func thisNode() node {
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	seed, err := os.ReadFile("/etc/machine-id")
	if seed = bytes.TrimSpace(seed); err != nil || len(seed) == 0 {
		seed = []byte(name)
	}
	return node{uuid.NewSHA1(uuid.NameSpaceOID, append([]byte("taskapi node "), seed...)).String(), name}
}

// NewAllocation returns an allocation as a scheduler would have placed it on this machine. The allocation counts the
// versions of its job.
func NewAllocation(id string, job *api.Job, group *api.TaskGroup) *api.Allocation {
	node := thisNode()
	if job.Version != nil {
		job.Version = nil
	}
	return &api.Allocation{
		ID:        id,
		EvalID:    uuid.NewString(),
		Name:      fmt.Sprintf("%s.%s[0]", *job.ID, *group.Name),
		Namespace: *job.Namespace,
		NodeID:    node.id,
		NodeName:  node.name,
		JobID:     *job.ID,
		Job:       job,
		TaskGroup: *group.Name,

		DeploymentID: deployment.NewID(job, group),
	}
}
