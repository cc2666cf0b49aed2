package jobspec

import (
	"cmp"

	"github.com/hashicorp/nomad/api"
)

// normalize moves what HCL has in one place and the API in another. label is that of the job block.
func normalize(job *api.Job, label string) {
	job.ID, job.Name = cmp.Or(job.ID, new(label)), cmp.Or(job.Name, new(label))
	for _, group := range job.TaskGroups {
		normalizeNetworks(group.Networks)
		for _, task := range group.Tasks {
			if task.Resources != nil {
				normalizeNetworks(task.Resources.Networks)
			}
		}
	}
}

// normalizeNetworks moves the ports that have a static number to the reserved ones.
func normalizeNetworks(networks []*api.NetworkResource) {
	for _, network := range networks {
		var dynamic []api.Port
		for _, port := range network.DynamicPorts {
			if port.Value != 0 {
				network.ReservedPorts = append(network.ReservedPorts, port)
			} else {
				dynamic = append(dynamic, port)
			}
		}
		network.DynamicPorts = dynamic
	}
}
