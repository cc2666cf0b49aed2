package look

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/children"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/top"
)

func Top(w base.Environment) *cobra.Command {
	var at base.TargetFlags
	show := topShow{environment: w}
	cmd := &cobra.Command{
		Use:   "top [flags] [ALLOC]",
		Short: "Watch allocations on the terminal, and act on them",
		Long: `Shows allocations on the terminal, keeps them up to date, and acts on them by keys.

Without ALLOC, it lists all allocations, those that run first, with their states, tasks, CPU, memory, restarts and
checks. Enter goes into one, and Esc back. Inside, it shows the tasks, and the output of the chosen task, the events,
the check results or the details. A wide screen shows how much of a memory limit is used, in percent. Keys restart,
signal and stop, after a question, and run a command in a task. ? lists the keys, q ends top, and the allocations go on.

` + base.AllocNames + ` With ALLOC, top begins inside of it.

While an allocation's taskapi is restarted, top waits for it. When the allocation has ended, top shows what it saw
last. There are no colours if NO_COLOR is set.

--once prints one screen with all rows, as wide as the terminal, or else 80 columns. --json prints the same for
programs: without ALLOC a list. A template gets the same: .ID .Name .DataDir .Status .Healthy .Error .TasksRunning
.ChecksPassing .Checks .CPUPercent .RSS .Restarts .Ports .Created .Tasks, and of each task .Name .State .CPUPercent .RSS
.Restarts .Started .PIDs .Command.

Exit code: 0 when top was ended, also by a signal, 1 when the terminal can't be used, or when --once can't read
something.`,
		Example: `  taskapi top
  taskapi top hello
  taskapi top --once
  taskapi top -t '{{range .}}{{.Name}} {{.TasksRunning}}{{"\n"}}{{end}}'`,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if !show.once && !show.out.JSON && show.out.Template == "" {
				show.terminal, err = screen(w)
			}
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var start base.Target
			if at.Given(args) {
				var err error
				if start, err = at.Find(cmd.Context(), args); err != nil {
					return err
				}
			}
			f, err := base.NewFinder(w, at.DataDir)
			if err != nil {
				return err
			}
			return show.run(cmd.Context(), f, start)
		},
	}
	at.Add(cmd, w, base.ToRead)
	base.AddOutputAs(cmd, &show.out, "print what --once prints as JSON; an error is JSON, too")
	cmd.Flags().BoolVar(&show.once, "once", false, "print one screen with all rows, and end")
	return cmd
}

type topShow struct {
	environment base.Environment
	out         base.OutputFlags
	once        bool
	terminal    top.Terminal
}

func (s *topShow) run(ctx context.Context, f *base.Finder, start base.Target) error {
	places := f.Places
	if start.ID != "" && !slices.ContainsFunc(places, func(l base.Layout) bool { return l.Dir == start.Layout.Dir }) {
		places = append(places, start.Layout)
	}
	c := top.Config{Find: finderOf(places), Start: start.ID, Terminal: s.terminal, Clock: time.Now}
	if !s.once && !s.out.ForPrograms() {
		return top.Run(ctx, c)
	}
	w := s.environment
	c.Terminal = top.Terminal{Colour: bool(w.Colors()), Lines: showsLines(w)}
	found, err := top.Look(ctx, c)
	all := found.Allocations()
	if start.ID != "" && len(all) != 1 {
		return errors.Join(err, errors.New("the allocation has just been removed"))
	}
	for _, a := range all {
		if a.Error != "" {
			err = errors.Join(err, errors.New("allocation "+output.ShortID(a.ID)+": "+a.Error))
		}
	}
	var value any = all
	if start.ID != "" {
		value = all[0]
	}
	return errors.Join(s.out.Print(w, value, nil, func() error {
		width := cmp.Or(output.Width(w.Stdout), 80)
		return w.Printf("%s", found.Text(width, output.IsTerminal(w.Stdout) || bool(w.Colors())))
	}), err)
}

// finderOf returns a function that finds all allocations of data directories. The state of one that has ended is read
// again only when its file has changed.
func finderOf(places []base.Layout) top.Find {
	type read struct {
		modified time.Time
		size     int64
		ended    *top.Snapshot
	}
	known := map[string]read{} // by path of the state
	return func(ctx context.Context) (all []top.Found, err error) {
		var errs []error
		for _, l := range places {
			ids, err := l.IDs()
			errs = append(errs, err)
			for _, id := range ids {
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				path := l.State(id)
				info, err := os.Stat(path)
				if err != nil { // whoever runs it may still answer
					all = append(all, foundIn(l, id, len(places) > 1, nil))
					continue
				}
				was, ok := known[path]
				if !ok || !was.modified.Equal(info.ModTime()) || was.size != info.Size() {
					was = read{info.ModTime(), info.Size(), endedState(l, id, path)}
					known[path] = was
				}
				all = append(all, foundIn(l, id, len(places) > 1, was.ended))
			}
		}
		return all, errors.Join(errs...)
	}
}

// endedState returns the saved state of an allocation that has ended, nil for any other.
func endedState(l base.Layout, id, path string) *top.Snapshot {
	if !state.Ended(path) {
		return nil
	}
	saved, err := l.Peek(id)
	if err != nil || saved == nil || saved.Alloc.ID != id { // the source says what is wrong
		return nil
	}
	return &top.Snapshot{Alloc: saved.Alloc, Ended: true, Checks: saved.Checks}
}

func foundIn(l base.Layout, id string, several bool, ended *top.Snapshot) top.Found {
	f := top.Found{ID: id, Ended: ended, Shell: top.ShellOf(string(l.Dir), id), Open: func() top.Source {
		files := allocrunner.Files(l.Alloc(id), &api.TaskGroup{}) // of which logs alone are read
		return top.NewSDK(l.Client(id), id, files)
	}, Launches: func() []*api.TaskEvent { return children.TaskEvents(l.Alloc(id)) }}
	if several {
		f.Dir = string(l.Dir)
	}
	return f
}

// asciiTerminals are those that show ASCII alone, by the beginnings of their names.
var asciiTerminals = []string{"vt1", "vt2", "ansi"}

// screen returns the terminal that the command has. Errors: usage errors when there is none that can be used.
func screen(w base.Environment) (top.Terminal, error) {
	in, out := w.Stdin, w.Stdout
	if !output.IsTerminal(in) || !output.IsTerminal(out) {
		return top.Terminal{}, base.Usagef("top needs a terminal as its input and its output; 'taskapi top --once' " +
			"prints one screen")
	}
	term := w.Getenv("TERM")
	if term == "" || term == "dumb" {
		return top.Terminal{}, base.Usagef("top can't draw on a terminal with TERM=%q; 'taskapi top --once' prints "+
			"one screen", term)
	}
	ascii := slices.ContainsFunc(asciiTerminals, func(name string) bool { return strings.HasPrefix(term, name) })
	return top.Terminal{In: in.(*os.File), Out: out.(*os.File), Env: w.Env, Colour: bool(w.Colors()) && !ascii,
		ASCII: ascii, Lines: !ascii && showsLines(w)}, nil
}

// showsLines reports whether the characters for lines and bars can be shown: the console of Linux lacks most of them,
// and a locale may be of another encoding.
func showsLines(w base.Environment) bool {
	locale := strings.ToLower(cmp.Or(w.Getenv("LC_ALL"), w.Getenv("LC_CTYPE"), w.Getenv("LANG"), "utf-8"))
	return w.Getenv("TERM") != "linux" && (strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8"))
}
