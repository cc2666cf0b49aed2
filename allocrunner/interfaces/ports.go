package interfaces

import (
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Networks returns the networks of a group, followed by the networks in its tasks' resources, which jobs for Nomad
// before 0.12 have. The label of a task's port is prefixed with the task's name: TASK/LABEL.
func Networks(group *api.TaskGroup) []*api.NetworkResource {
	all := slices.Clone(group.Networks)
	for _, t := range group.Tasks {
		for _, n := range networksOf(t) {
			all = append(all, relabel(n, func(label string) string { return t.Name + "/" + label }))
		}
	}
	return all
}

// Ports returns the ports of networks: static ones first, as in Nomad.
func Ports(networks []*api.NetworkResource) (ports []api.PortMapping) {
	add := func(ip string, of []api.Port) {
		for _, p := range of {
			ports = append(ports, api.PortMapping{Label: p.Label, Value: p.Value, To: p.To, HostIP: ip})
		}
	}
	networks = slices.DeleteFunc(slices.Clone(networks), func(n *api.NetworkResource) bool { return n == nil })
	for _, n := range networks {
		add(n.IP, n.ReservedPorts)
	}
	for _, n := range networks {
		add(n.IP, n.DynamicPorts)
	}
	return ports
}

// SetNetworks gives networks that Networks has returned, with addresses and numbers, to the resources of an allocation.
// As in Nomad, the shared ports are all ports.
func SetNetworks(a *api.Allocation, networks []*api.NetworkResource) {
	group, to := a.GetTaskGroup(), a.AllocatedResources
	to.Shared.Networks = networks[:len(group.Networks)]
	a.Resources.Networks = slices.Clip(to.Shared.Networks)
	rest := networks[len(group.Networks):]
	for _, t := range group.Tasks {
		n := len(networksOf(t))
		for _, own := range rest[:n] {
			own = relabel(own, func(label string) string { return label[len(t.Name)+1:] })
			to.Tasks[t.Name].Networks = append(to.Tasks[t.Name].Networks, own)
			a.Resources.Networks = append(a.Resources.Networks, own)
		}
		a.TaskResources[t.Name].Networks = to.Tasks[t.Name].Networks
		rest = rest[n:]
	}
	to.Shared.Ports = Ports(a.Resources.Networks)
}

// AllocatedPorts returns the ports of an allocation, with labels as Networks makes them; nil without resources.
func AllocatedPorts(of *api.AllocatedResources) []api.PortMapping {
	if of == nil {
		return nil
	}
	networks := of.Shared.Networks
	for name, t := range of.Tasks {
		for _, n := range t.Networks {
			networks = append(slices.Clip(networks), relabel(n, func(label string) string { return name + "/" + label }))
		}
	}
	return Ports(networks)
}

func networksOf(t *api.Task) []*api.NetworkResource {
	if t == nil || t.Resources == nil {
		return nil
	}
	return t.Resources.Networks
}

func relabel(n *api.NetworkResource, label func(string) string) *api.NetworkResource {
	if n == nil {
		return nil
	}
	c := *n
	for _, ports := range []*[]api.Port{&c.ReservedPorts, &c.DynamicPorts} {
		*ports = slices.Clone(*ports)
		for i := range *ports {
			(*ports)[i].Label = label((*ports)[i].Label)
		}
	}
	return &c
}
