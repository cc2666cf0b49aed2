package base

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"taskapi/internal/must"
)

// TestNames: --alloc and --task stand for the arguments, and contradict none.
func TestNames(t *testing.T) {
	ofTasks, ofSome := Sought{Tasks: AnyTasks}, Sought{Tasks: SomeTasks}
	for args, tc := range map[string]struct {
		sought    Sought
		want, err string
	}{
		"":                       {ofTasks, "", ""},
		"web":                    {ofTasks, "web", ""},
		"--alloc a":              {ofTasks, "a", ""},
		"--alloc a web":          {ofTasks, "a web", ""},
		"--alloc a a":            {ofTasks, "a", ""},
		"--task web":             {ofTasks, "web", ""},
		"--task web a":           {ofTasks, "a web", ""},
		"--alloc a --task web":   {ofTasks, "a web", ""},
		"--alloc a a web":        {ofTasks, "a web", ""},
		"--task web a web":       {ofTasks, "a web", ""},
		"--alloc b a web":        {ofTasks, "", `ALLOC is given twice: "a", and --alloc "b"`},
		"--task db a web":        {ofTasks, "", `TASK is given twice: "web", and --task "db"`},
		"--alloc a --task b c":   {ofTasks, "", `TASK is given twice: "c", and --task "b"`},
		"--alloc=":               {ofTasks, "", "--alloc is empty: give a name, or leave it out"},
		"--alloc a web db":       {ofSome, "a web db", ""},
		"a web --task db":        {ofSome, "", `TASK is given twice: "web", and --task "db"`},
		"--task= a":              {ofTasks, "", "--task is empty: give a name, or leave it out"},
		"--alloc a b":            {ToChange, "", `ALLOC is given twice: "b", and --alloc "a"`},
		"--alloc a --data-dir x": {ToChange, "a", ""},
	} {
		var at TargetFlags
		cmd := &cobra.Command{Use: "x"}
		at.Add(cmd, Environment{}, tc.sought)
		must.OK(t, cmd.ParseFlags(strings.Fields(args)))
		names, err := at.Names(cmd.Flags().Args())
		if got := strings.Join(names, " "); got != tc.want || tc.err == "" != (err == nil) ||
			err != nil && (err.Error() != tc.err || !IsUsage(err)) {
			t.Errorf("%q: %q, %v; want %q, %q", args, got, err, tc.want, tc.err)
		}
	}
}
