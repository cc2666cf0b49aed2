package allocrunner

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/readiness"
)

// handOver keeps listening sockets of this allocation's tasks open until the tasks of the next version get them: the
// sockets that the next version's tasks want, too, on the same ports. With a nil version, no socket stays open.
func (r *Runner) handOver(next *api.Allocation) {
	supervisor := r.resources.measured.Load()
	if supervisor == nil { // no task has started
		return
	}
	if next == nil {
		supervisor.HandOver(nil)
		return
	}
	var sockets []drivers.HeldSocket
	for _, task := range next.GetTaskGroup().Tasks {
		set, err := readiness.Of(task)
		if err != nil {
			continue
		}
		for _, p := range set.Listen {
			port := keptPort(r.ports(), next.GetTaskGroup(), p.Label)
			if port == 0 {
				continue
			}
			l := drivers.Listener{Name: p.Label, Network: "tcp", Port: port}
			if p.UDP {
				l.Network = "udp"
			}
			i := slices.IndexFunc(sockets, func(has drivers.HeldSocket) bool { return has.Listener == l })
			if i < 0 {
				i, sockets = len(sockets), append(sockets, drivers.HeldSocket{Listener: l})
			}
			sockets[i].Tasks = append(sockets[i].Tasks, task.Name)
		}
	}
	supervisor.HandOver(sockets)
}

// keptPort returns the number of the port with a label if this allocation and the next version have the same port, and
// 0 otherwise.
func keptPort(had []api.PortMapping, next *api.TaskGroup, label string) int {
	i := slices.IndexFunc(had, func(p api.PortMapping) bool { return p.Label == label })
	if i < 0 {
		return 0
	}
	is := func(p api.Port) bool { return p.Label == label && (p.Value == 0 || p.Value == had[i].Value) }
	for _, n := range next.Networks {
		if slices.ContainsFunc(n.ReservedPorts, is) || slices.ContainsFunc(n.DynamicPorts, is) {
			return had[i].Value
		}
	}
	return 0
}

// handedPorts returns the ports of sockets that an earlier version has left.
func handedPorts(sockets []drivers.HeldSocket) (ports []api.PortMapping) {
	for _, l := range sockets {
		ports = append(ports, api.PortMapping{Label: l.Name, Value: l.Port})
	}
	return ports
}
