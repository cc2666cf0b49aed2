package look

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
)

// allocLine and serviceLine are lines of a stream, with the index of an allocation's version; the service's own is
// another.
func allocLine(index int, kind string) string {
	return fmt.Sprintf(`{"Index":%d,"Events":[{"Topic":"Allocation","Type":%q,"Key":"a","Index":%[1]d,`+
		`"Payload":{"Allocation":{"ID":"a"}}}]}`, index, kind)
}

func serviceLine(index int, services ...string) string {
	var events []string
	for _, s := range services {
		events = append(events, fmt.Sprintf(`{"Topic":"Service","Type":"ServiceRegistration","Key":%q,"Index":%d,`+
			`"Payload":{"Service":{"ID":%[1]q}}}`, s, index))
	}
	return fmt.Sprintf(`{"Index":%d,"Events":[%s]}`, index, strings.Join(events, ","))
}

// TestEventsComeOnce over streams that begin again at the last index, each as a process has it.
func TestEventsComeOnce(t *testing.T) {
	const beat = "{}"
	for name, c := range map[string]struct {
		from    uint64
		streams [][]string
		want    string
	}{
		"a stream that goes on": {0, [][]string{
			{beat, allocLine(1, "PlanResult"), serviceLine(1, "s1"), beat, serviceLine(1, "s2")},
			{beat, allocLine(1, "PlanResult"), serviceLine(1, "s1"), serviceLine(1, "s2"), serviceLine(1, "s3"), beat,
				allocLine(2, "AllocationUpdated")},
		}, "a s1 s2 s3 a "},
		"the first lines are not kept any more": {0, [][]string{
			{beat, allocLine(1, "PlanResult"), beat, serviceLine(1, "s1"), serviceLine(1, "s2")},
			{beat, serviceLine(1, "s2"), serviceLine(1, "s3"), serviceLine(1, "s4"), beat, serviceLine(1, "s5")},
		}, "a s1 s2 s3 s4 s5 "},
		"another process": {0, [][]string{
			{beat, allocLine(1, "PlanResult"), beat, serviceLine(1, "s1"), serviceLine(1, "s2")},
			{beat, allocLine(1, "AllocationUpdated"), beat, serviceLine(1, "s3"), serviceLine(1, "s4", "s1")},
		}, "a s1 s2 s3 s4 "},
		"an index that is to come": {2, [][]string{
			{beat, allocLine(1, "PlanResult"), beat, serviceLine(1, "s1")},
			{beat, allocLine(1, "PlanResult"), beat, serviceLine(1, "s1"), allocLine(2, "AllocationUpdated")},
		}, "s1 a "},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			keys, err := output.ParseTemplate("{{.Key}}")
			if err != nil {
				t.Fatal(err)
			}
			s := &eventsStream{environment: base.Environment{Stdout: &out},
				follow: true, out: base.OutputFlags{Parsed: keys}, next: c.from}
			for _, lines := range c.streams {
				if done, err := s.printLines(strings.NewReader(strings.Join(lines, "\n"))); done || err != nil {
					t.Errorf("done %t, %v, want a stream that is opened again", done, err)
				}
			}
			if got := strings.ReplaceAll(out.String(), "\n", " "); got != c.want {
				t.Errorf("printed %q, want %q", got, c.want)
			}
		})
	}
}

// TestEventsOfAnEndThatWasNotRead are made up for by the last of them, which says so, once.
func TestEventsOfAnEndThatWasNotRead(t *testing.T) {
	var out, stderr strings.Builder
	status, err := output.ParseTemplate("{{.Index}} {{.Topic}} {{with .Allocation}}{{.ClientStatus}}{{end}}")
	if err != nil {
		t.Fatal(err)
	}
	s := &eventsStream{environment: base.Environment{Stdout: &out, Stderr: &stderr},
		follow: true, out: base.OutputFlags{Parsed: status}}
	if _, err := s.printLines(strings.NewReader("{}" + allocLine(3, "AllocationUpdated"))); err != nil {
		t.Fatal(err)
	}
	alloc := &api.Allocation{ID: "a", JobID: "j", ClientStatus: "complete", ModifyIndex: 3}
	for _, index := range []uint64{3, 7, 7} {
		alloc.ModifyIndex = index
		if err := s.printEnd(alloc); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := out.String(), "3 Allocation \n7 Allocation complete\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if got, want := stderr.String(),
		"taskapi: events from index 3 to 7 may be lost: the allocation ended before they were read\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// TestEventsHadAreBounded, and those that a stream may begin with are remembered.
func TestEventsHadAreBounded(t *testing.T) {
	var had eventsHad
	event := func(i int) *api.Event { return &api.Event{Topic: api.TopicService, Key: fmt.Sprint(i)} }
	const count = 3*maxHad + maxHad/2
	for i := range count {
		if had.before(event(i)) {
			t.Fatalf("event %d has come before", i)
		}
	}
	if n := len(had.latest) + len(had.earlier); n > 2*maxHad {
		t.Errorf("%d events are remembered", n)
	}
	for i := count - maxHad; i < count; i++ {
		if !had.before(event(i)) {
			t.Fatalf("event %d is forgotten", i)
		}
	}
}
