package machine

import "testing"

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
	sum.add([]byte(`{"Gauges": [{"Name": "nomad.client.allocated.cpu", "Value": 1, "Labels": {"node_id": "a"}},
		{"Name": "nomad.client.unallocated.cpu", "Value": 9, "Labels": {"node_id": "a"}}]}`))
	sum.add([]byte(`{"Gauges": [{"Name": "nomad.client.allocated.cpu", "Value": 2, "Labels": {"node_id": "a"}}]}`))
	sum.add([]byte(`no JSON`))
	gauges := sum.answer()["Gauges"].([]any)
	if len(gauges) != 2 || gauges[0].(map[string]any)["Value"] != 3.0 || gauges[1].(map[string]any)["Value"] != 7.0 {
		t.Errorf("the sum is %v", gauges)
	}
}
