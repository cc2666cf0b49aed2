package agent

import "testing"

// TestGuarantees: they never come to more than all connections, and are never none.
func TestGuarantees(t *testing.T) {
	for _, connections := range []int{64, 1024, 10_000} {
		for tasks := 1; tasks <= 2000; tasks++ {
			if g := guarantee(tasks, connections); g < 1 || g > 1 && operatorConnections+tasks*g > connections {
				t.Errorf("%d of %d for each of %d tasks", g, connections, tasks)
			}
		}
	}
}
