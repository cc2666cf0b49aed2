package machine

import (
	"encoding/json"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestMetricsAreAddedUp: what each process measures of itself is added up, what all measure of the machine is there
// once, and what the allocations leave of the machine is less.
func TestMetricsAreAddedUp(t *testing.T) {
	all := newText()
	for _, one := range []string{
		`# HELP nomad_client_allocated_cpu sum
# TYPE nomad_client_allocated_cpu gauge
nomad_client_allocated_cpu{node_id="a"} 100
# HELP nomad_client_unallocated_cpu rest
# TYPE nomad_client_unallocated_cpu gauge
nomad_client_unallocated_cpu{node_id="a"} 900
# HELP nomad_client_uptime seconds
nomad_client_uptime{node_id="a"} 7
`,
		`# HELP nomad_client_allocated_cpu sum
# TYPE nomad_client_allocated_cpu gauge
nomad_client_allocated_cpu{node_id="a"} 300
# HELP nomad_client_unallocated_cpu rest
# TYPE nomad_client_unallocated_cpu gauge
nomad_client_unallocated_cpu{node_id="a"} 700
# HELP nomad_client_uptime seconds
nomad_client_uptime{node_id="a"} 8
# HELP taskapi_x of another
taskapi_x{task="b c"} 1
`,
	} {
		all.add(one)
	}
	const want = `# HELP nomad_client_allocated_cpu sum
# TYPE nomad_client_allocated_cpu gauge
nomad_client_allocated_cpu{node_id="a"} 400
# HELP nomad_client_unallocated_cpu rest
# TYPE nomad_client_unallocated_cpu gauge
nomad_client_unallocated_cpu{node_id="a"} 600
# HELP nomad_client_uptime seconds
nomad_client_uptime{node_id="a"} 7
# HELP taskapi_x of another
taskapi_x{task="b c"} 1
`
	if got := all.String(); got != want {
		t.Errorf("the sum is\n%s\nwant\n%s", got, want)
	}
	sum := newNumbers()
	counter := `"Counters": [{"Name": "taskapi_x", "Count": 2, "Sum": 2.5, "Mean": 2.5, "Labels": {}}]`
	sum.add([]byte(`{"Gauges": [{"Name": "nomad.client.allocated.cpu", "Value": 1, "Labels": {"node_id": "a"}},
		{"Name": "nomad.client.unallocated.cpu", "Value": 9, "Labels": {"node_id": "a"}}], ` + counter + `}`))
	sum.add([]byte(`{"Gauges": [{"Name": "nomad.client.allocated.cpu", "Value": 2, "Labels": {"node_id": "a"}}],
		` + counter + `}`))
	sum.add([]byte(`no JSON`))
	text, err := json.Marshal(sum.answer())
	var got api.MetricsSummary
	if err != nil || json.Unmarshal(text, &got) != nil || len(got.Gauges) != 2 || got.Gauges[0].Value != 3 ||
		got.Gauges[1].Value != 7 || len(got.Counters) != 1 || got.Counters[0].Count != 5 || got.Counters[0].Sum != 5 {
		t.Errorf("the sum is %s, %v", text, err)
	}
}
