package look

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/top"
)

func Top(w base.Environment) *cobra.Command {
	var terminal top.Terminal
	return base.OnTarget(w, base.ToFollow, &cobra.Command{
		Use:   "top [flags] [ALLOC]",
		Short: "Watch a running allocation on the terminal, and act on it",
		Long: `Shows a running allocation on the terminal, keeps it up to date, and acts on it by keys.

It shows the tasks with their states, health, CPU, memory and restarts, and the output of the chosen task, the events
or the check results. Keys restart, signal and stop, after a question, and run a command in a task. ? lists the keys,
q ends top, and the allocation goes on.

` + base.AllocArgs + `

While the allocation's taskapi is restarted, top waits for it. When the allocation has ended, top shows what it saw
last. There are no colours if NO_COLOR is set.

Exit code: 0 when top was ended, also by a signal, 1 when the terminal can't be used.`,
		Example: `  taskapi top
  taskapi top hello`,
		PreRunE: func(*cobra.Command, []string) (err error) {
			terminal, err = screen(w)
			return err
		},
	}, func(ctx context.Context, found base.Target) error {
		files := allocrunner.Files(found.Layout.Alloc(found.ID), &api.TaskGroup{}) // of which logs alone are read
		sdk := top.NewSDK(found.Client(), found.ID, files)
		defer sdk.Close()
		return top.Run(ctx, top.Config{
			ID: found.ID, Source: sdk, Shell: top.ShellOf(string(found.Layout.Dir), found.ID),
			Terminal: terminal, Now: time.Now(),
		})
	})
}

// asciiTerminals are those that show ASCII alone, by the beginnings of their names.
var asciiTerminals = []string{"vt1", "vt2", "ansi"}

// screen returns the terminal that the command has. Errors: usage errors when there is none that can be used.
func screen(w base.Environment) (top.Terminal, error) {
	in, out := w.Stdin, w.Stdout
	if !output.IsTerminal(in) || !output.IsTerminal(out) {
		return top.Terminal{}, base.Usagef("top needs a terminal as its input and its output; 'taskapi status' " +
			"prints an allocation once")
	}
	term := w.Getenv("TERM")
	if term == "" || term == "dumb" {
		return top.Terminal{}, base.Usagef("top can't draw on a terminal with TERM=%q; 'taskapi status' prints "+
			"an allocation once", term)
	}
	ascii := slices.ContainsFunc(asciiTerminals, func(name string) bool { return strings.HasPrefix(term, name) })
	return top.Terminal{In: in.(*os.File), Out: out.(*os.File), Env: w.Env, Colour: bool(w.Colors()) && !ascii,
		ASCII: ascii}, nil
}
