package base

import (
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/cmd/taskapi/internal/settings"
)

// TargetFlags are the flags of a command whose arguments are [ALLOC], or [ALLOC] [TASK]: --data-dir, and --alloc and
// --task, which stand for the arguments.
type TargetFlags struct {
	DataDir string
	Sought  Sought
	w       Environment
	flags   *pflag.FlagSet
}

// Add adds the flags and shell completion.
func (f *TargetFlags) Add(cmd *cobra.Command, w Environment, s Sought) {
	AddDataDir(cmd, &f.DataDir)
	f.AddNames(cmd, w, s)
	cmd.ValidArgsFunction = CompleteTarget(&f.DataDir, w, s)
}

// AddNames adds --alloc and, if the command is about tasks, --task, to a command that has --data-dir.
func (f *TargetFlags) AddNames(cmd *cobra.Command, w Environment, s Sought) {
	f.w, f.Sought, f.flags = w, s, cmd.Flags()
	f.flags.String("alloc", "", "`ALLOC`, an allocation's name or ID")
	if s.Tasks != NoTask {
		f.flags.String("task", "", "`TASK`, a task's name")
	}
	for _, name := range []string{"alloc", "task"} {
		// an error says that the command has no such flag
		_ = cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, _ []string, begun string) ([]string,
			cobra.ShellCompDirective) {
			return CompleteTarget(&f.DataDir, w, s)(cmd, nil, begun)
		})
	}
}

// AddConfig adds the flag of commands that need settings.
func AddConfig(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "config", "",
		"settings `FILE` (default $"+settings.FileEnv+", else the machine's or your own)")
}

// AddDataDir adds the flag of commands that need the data directory alone.
func AddDataDir(cmd *cobra.Command, dataDir *string) {
	cmd.Flags().StringVar(dataDir, "data-dir", "", dataDirUsage)
}

// flag returns the value of --alloc or --task; empty if it is not given.
func (f *TargetFlags) flag(name string) (string, error) {
	given := f.flags.Lookup(name)
	switch {
	case given == nil || !given.Changed:
		return "", nil
	case given.Value.String() == "": // without this check, another allocation would be meant
		return "", Usagef("--%s is empty: give a name, or leave it out", name)
	}
	return given.Value.String(), nil
}

// Names returns [ALLOC] [TASK], as the arguments and the flags name them. Several arguments may be allocations.
func (f *TargetFlags) Names(args []string) ([]string, error) {
	alloc, err := f.flag("alloc")
	if err != nil {
		return nil, err
	}
	task, err := f.flag("task")
	if err != nil {
		return nil, err
	}
	args = slices.Clone(args)
	if one := len(args) == 1 || f.Sought.Tasks == SomeTasks; len(args) == 0 ||
		one && f.Sought.Tasks != NoTask && args[0] != alloc {
		args = slices.DeleteFunc(slices.Insert(args, 0, alloc), func(name string) bool { return name == "" })
	}
	if alloc != "" && args[0] != alloc {
		return nil, Usagef("ALLOC is given twice: %q, and --alloc %q", args[0], alloc)
	}
	switch {
	case task == "" || len(args) == 2 && args[1] == task:
		return args, nil
	case len(args) == 2:
		return nil, Usagef("TASK is given twice: %q, and --task %q", args[1], task)
	}
	return append(args, task), nil
}

// Given reports whether the arguments or the flags name anything.
func (f *TargetFlags) Given(args []string) bool {
	return len(args) > 0 || f.flags.Changed("alloc") || f.flags.Changed("task")
}

// GivesTask reports whether --task is given.
func (f *TargetFlags) GivesTask() bool { return f.flags.Changed("task") }

// Find returns the allocation and the task that the arguments and the flags name, as the function Find does.
func (f *TargetFlags) Find(ctx context.Context, args []string) (Target, error) {
	names, err := f.Names(args)
	if err != nil {
		return Target{}, err
	}
	s, isTask := f.Sought, f.GivesTask() && len(names) == 1
	if isTask {
		s.Tasks, s.Whole = OneTask, false
	}
	t, err := Find(ctx, f.w, f.DataDir, names, s)
	if err == nil && isTask && t.Task != names[0] {
		return t, errNoTask(t, names[0])
	}
	return t, err
}

// OnTarget prepares a command that acts on the target that its arguments name: it adds the flags and the look-up.
func OnTarget(w Environment, s Sought, cmd *cobra.Command, do func(context.Context, Target) error) *cobra.Command {
	var at TargetFlags
	at.Add(cmd, w, s)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		found, err := at.Find(cmd.Context(), args)
		if err != nil {
			return err
		}
		return do(cmd.Context(), found)
	}
	return cmd
}
