package agent

import "testing"

// TestGuarantees: they never come to more than all connections, and are never none.
func TestGuarantees(t *testing.T) {
	for tasks := 1; tasks <= 2000; tasks++ {
		if g := guarantee(tasks); g < 1 || g > 1 && operatorConnections+tasks*g > maxConnections {
			t.Errorf("%d for each of %d tasks", g, tasks)
		}
	}
}
