package list

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

// alloc returns an allocation with so many tasks.
func alloc(tasks int) *api.Allocation {
	a := &api.Allocation{
		ID: "c0d1e142-a4a0-95b1-a59a-729f2d54a5d4", ClientStatus: "running", TaskGroup: "web", CreateIndex: 7,
		Job:        &api.Job{ID: new("demo"), Type: new("service"), Priority: new(50), Datacenters: []string{"dc1", "dc2"}},
		TaskStates: map[string]*api.TaskState{},
	}
	for i := range tasks {
		a.TaskStates[fmt.Sprintf("task-%d", i)] = &api.TaskState{State: "running", Restarts: uint64(i),
			Events: make([]*api.TaskEvent, 10)}
	}
	return a
}

func TestMatches(t *testing.T) {
	for text, want := range map[string]bool{
		`ClientStatus == "running"`:                                     true,
		`ClientStatus != "running"`:                                     false,
		`ClientStatus == "running" and not (TaskGroup == "api")`:        true,
		`ClientStatus == "failed" or CreateIndex == 7`:                  true,
		`ID matches "^c0d1"`:                                            true,
		`ID not matches "^c0d1"`:                                        false,
		`"dc2" in Job.Datacenters`:                                      true,
		`Job.Datacenters contains "dc3"`:                                false,
		`Job.Type == "service"`:                                         true,
		`Job.Priority == 50`:                                            true,
		`Job.ParentID == ""`:                                            true, // a pointer to nothing
		`Job.ParentID is empty`:                                         true,
		`Job.ParentID matches "x"`:                                      false,
		`Job.AllAtOnce == true`:                                         false,
		`TaskStates is not empty`:                                       true,
		`"task-1" in TaskStates`:                                        true,
		`"task-9" in TaskStates`:                                        false,
		`TaskStates["task-1"].Restarts == 1`:                            true,
		`any TaskStates as _, s { s.Restarts == 1 }`:                    true,
		`all TaskStates as _, s { s.Restarts == 1 }`:                    false,
		`any TaskStates as k { k == "task-2" }`:                         true,
		`any TaskStates as _, s { any s.Events as e { e is not nil } }`: false,
		`DeploymentStatus is nil`:                                       true,
		`((((ClientStatus == "running"))))`:                             true,
	} {
		f, err := newFilter(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for range 2 { // a Filter is good for many values
			if got, err := f.matches(alloc(3)); got != want || err != nil {
				t.Errorf("%s = %v, %v, want %v", text, got, err, want)
			}
		}
	}
}

// TestEvil holds that every expression is refused, with few words, or applied within a second on an idle machine.
// Without bounds some would take hours.
func TestEvil(t *testing.T) {
	many := alloc(500)
	many.Job.Payload = []byte(strings.Repeat("a", 1<<20))
	many.ClientDescription = strings.Repeat("a", 1<<20)
	for name, c := range map[string]struct{ text, want string }{
		"long": {strings.Repeat("x", 1<<20), "it is longer than 2048 bytes"},
		"parentheses": {strings.Repeat("(", 900) + `a == 1` + strings.Repeat(")", 900),
			"max number of expressions parsed"},
		"nots":                  {strings.Repeat("not ", 400) + "ClientStatus == running", ""},
		"ands":                  {strings.Repeat("a == 1 and ", 180) + "a == 1", `struct field with name "a"`},
		"an unknown field":      {`Nope == 1`, `couldn't find key: struct field with name "Nope"`},
		"an unknown key":        {`TaskStates["absent"].Restarts == 1`, `couldn't find key "absent"`},
		"a part of a text":      {`ID.Nope == 1`, "invalid value kind"},
		"no operator":           {`x`, "no match found"},
		"nothing":               {` `, "no match found"},
		"NUL":                   {"\x00", "no match found"},
		"not UTF-8":             {"ID == \xff", "invalid encoding"},
		"not a number":          {`CreateIndex == x`, "invalid syntax"},
		"not a list":            {`any ClientStatus as c { c == "x" }`, "is not a list or a map"},
		"nil":                   {`DeploymentStatus matches "x"`, "can't be used on it"},
		"beyond nil":            {`DeploymentStatus.Healthy == true`, "invalid value kind"},
		"a bad regexp":          {`ID matches "("`, "missing closing )"},
		"repeated repetition":   {`ID matches "((a{100}){100}){100}"`, "invalid repeat count"},
		"many repetitions":      {`ID matches "` + strings.Repeat(`(x+x+){900}`, 100) + `"`, "is too large"},
		"large classes":         {`ID matches "` + strings.Repeat(`\\pL{1000}`, 100) + `"`, "is too large"},
		"many regexps":          {strings.Repeat(`ID matches "a{900}" or `, 20) + `ID == "x"`, "is too large"},
		"a regexp, a long text": {`ClientDescription matches "(a|a)*(a|a)*(a|a)*b"`, "too many steps"},
		// Every comparison counts, also those that the first one spares.
		"any in any in any": {nested(3, "TaskStates", strings.Repeat(`a == "x" and `, 20)+`a == "x"`), "too many steps"},
		"any in any, keys":  {nested(2, "TaskStates", strings.Repeat(`a == "x" or `, 100)+`a == "x"`), "too many steps"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := newFilter(c.text)
			if err == nil {
				_, err = f.matches(many)
			}
			if text := fmt.Sprint(err); err == nil && c.want != "" || !strings.Contains(text, c.want) || len(text) > 400 {
				t.Errorf("error %q, want %q in it, and few words", text, c.want)
			}
		})
	}
}

// TestManyValues applies expressions to 10,000 values, each of which is cheap. The costly expression is refused in
// the middle. Its regular expression is one that fails at the first byte: the steps are counted before, by its size
// and the text's.
func TestManyValues(t *testing.T) {
	value := &api.VariableMetadata{Path: "nomad/jobs/" + strings.Repeat("x", 100)}
	for text, want := range map[string]string{
		`Path matches "^nomad/jobs/[a-z]+$" or Path matches "^b+$"`: "",
		`Path matches "^y(x?){300}(x?){300}"`:                       "too many steps for so many values",
	} {
		f, err := newFilter(text)
		must.OK(t, err)
		values := 0
		for ; values < 10_000 && err == nil; values++ {
			_, err = f.matches(value)
		}
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%s: %v after %d values, want %q", text, err, values, want)
		}
		if values < 100 {
			t.Errorf("%s: refused after %d values", text, values)
		}
	}
}

// nested returns an expression with so many collections, one within another.
func nested(depth int, over, inner string) string {
	if depth == 0 {
		return inner
	}
	return "any " + over + " as a { " + nested(depth-1, over, inner) + " }"
}

func FuzzFilter(f *testing.F) {
	for _, text := range []string{`ID == "x"`, `any TaskStates as k, v { v.Failed == true }`,
		`not ("a" in Job.Datacenters)`, `ID matches "^a{3}"`, "(("} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		chosen, err := newFilter(text)
		if err != nil {
			return
		}
		if _, err := chosen.matches(alloc(2)); err != nil && len(err.Error()) > 400 {
			t.Errorf("%d bytes of error", len(err.Error()))
		}
	})
}
