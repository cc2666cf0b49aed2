package review

import (
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/readiness"
)

// readiness reviews the keys of a task's meta that taskapi acts on, and names such keys where nothing does.
func (r *reviewer) readiness(t *api.Task) {
	for _, meta := range []map[string]string{r.job.Meta, r.group.Meta} {
		for _, key := range readiness.Keys {
			if _, ok := meta[key]; ok {
				r.add(Warning, "meta", "%s has a meaning only in the meta block of a task", key)
			}
		}
	}
	for _, key := range readiness.Unknown(t.Meta) {
		r.add(Warning, "meta", "nothing acts on %s; there is: %s", key, strings.Join(readiness.Keys, ", "))
	}
	set, err := readiness.Of(t)
	if err != nil {
		r.refuse("meta", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	for _, p := range set.Listen {
		has := func(n *api.NetworkResource) bool {
			return n != nil && slices.ContainsFunc(slices.Concat(n.ReservedPorts, n.DynamicPorts),
				func(port api.Port) bool { return port.Label == p.Label })
		}
		if !slices.ContainsFunc(r.group.Networks, has) {
			r.refuse("meta", "%s names %q, and the group's network block has no port with that label",
				readiness.ListenKey, p.Label)
		}
	}
}
