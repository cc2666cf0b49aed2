package main

import (
	"strings"
	"testing"
)

// differsAtAgent is what calls get on the agent's socket, unlike the operator of an allocation.
var differsAtAgent = map[string]string{
	"Jobs.Scale": works, "Jobs.ScaleWithRequest": "400", // whose request has no group
}

// TestSDKCallsOfTheAgent makes every call on the agent's socket, about the same allocation as TestSDKCalls.
func TestSDKCallsOfTheAgent(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	operator := startRun(t, dir, sdkJob).operator()
	w := sdkWorld(t, operator)
	a := startAgent(t, dir)
	for _, row := range sdkTable {
		for method := range strings.FieldsSeq(row.methods) {
			name := strings.TrimPrefix(row.client+"."+method, ".")
			if row.operator == noRequest || endsAlloc[name] {
				continue
			}
			want := row.operator
			if differs := differsAtAgent[name]; differs != "" {
				want = differs
			}
			if got, err := w.call(t, a.client(), name); got != want {
				t.Errorf("%s: %s, %v; want %s", name, got, err, want)
			}
			awaitTasks(t, operator)
		}
	}
}
