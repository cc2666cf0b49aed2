package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/examples/doctest"
	"taskapi/handlers/node"
	"taskapi/socket"
)

// description is a metric in the documents.
type description struct{ name, kind, labels, doc string }

// TestMetricsAreDocumented holds docs/api.md to the tables of metrics, whose texts are also their HELP.
func TestMetricsAreDocumented(t *testing.T) {
	var want strings.Builder
	seen := map[string]bool{}
	for _, section := range []struct {
		of  string
		all []description
	}{
		{"Metrics of the allocation have the labels alloc_id, job, namespace, task_group and host, and those of the table",
			slices.Concat(describe(ofAlloc(&api.Allocation{})), describe(ofTask(&api.TaskState{}), "task"),
				describe(ofResources(&api.AllocatedTaskResources{}), "task"),
				describe(ofUsage(&api.ResourceUsage{CpuStats: &api.CpuStats{}, MemoryStats: &api.MemoryStats{}}, 0), "task"),
				describe(ofCheck(api.AllocCheckStatus{}), "check", "check_id", "service", "task"))},
		{"Metrics of the machine have Nomad's labels of a node, and those of the table",
			slices.Concat(describe(ofShare(&api.Allocation{}, &api.NodeResources{})),
				describe(ofHost(&api.HostStats{Memory: &api.HostMemoryStats{}})),
				describe(ofDisk(&api.HostDiskStats{}), "disk"),
				describe(ofCPU(node.HostCPU{HostCPUStats: &api.HostCPUStats{}}), "cpu"))},
		{"Metrics of taskapi have the labels of the table",
			slices.Concat(describe(ofAuth(auth.Stats{})), describe(ofAudit(auth.AuditStats{})),
				describe(ofSockets(socket.Stats{})), describe(ofHook(interfaces.HookStat{}), "hook", "step"),
				describe(ofRuntime()))},
	} {
		fmt.Fprintf(&want, "%s:\n\n| metric | kind | labels | |\n|---|---|---|---|\n", section.of)
		for _, d := range section.all {
			if seen[d.name] || d.doc == "" {
				t.Errorf("%s is there twice, or is not explained", d.name)
			}
			isNomads := strings.HasPrefix(d.name, "nomad_") // by Nomad's names
			if !isNomads && (d.kind == "counter") != strings.HasSuffix(d.name, "_total") {
				t.Errorf("%s is a %s: counters, and nothing else, end in _total", d.name, d.kind)
			}
			seen[d.name] = true
			fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", d.name, d.kind, d.labels, d.doc)
		}
		want.WriteString("\n")
	}
	doctest.Table(t, "../../../../docs/api.md", "cmd/taskapi/internal/metrics", want.String())
}

func describe(rows []metric, labels ...string) (all []description) {
	for _, row := range rows {
		d := description{name: row.exported(), kind: "gauge", doc: row.doc}
		if row.counter {
			d.kind = "counter"
		}
		names := slices.Clone(labels)
		if row.label != "" {
			names = append(names, row.label)
		}
		d.labels = strings.Join(names, ", ")
		all = append(all, d)
	}
	return all
}
