package look

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

func FS(w base.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fs",
		Short: "Show the files of an allocation, that runs or has ended",
		Long: `Shows the files that an allocation's tasks share (alloc/) and those of each task (TASK/), as the API does: nothing beside them, and nothing
of a task's secrets and private directories. PATH is relative to the allocation directory.
` + base.AllocArgs + `

The files are read from the data directory with the rights of the user who runs the command.`,
		Example: `  taskapi fs ls
  taskapi fs cat hello greeter/local/greeting`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return base.Usage(base.UnknownCommand(cmd, args[0]))
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(fsListCommand(w), fsCatCommand(w), fsStatCommand(w))
	return cmd
}

// fsTarget is what the arguments of a command about files name.
type fsTarget struct {
	base.Target
	files interfaces.Files
	path  string
}

// findFile reads [ALLOC] PATH.
func findFile(ctx context.Context, w base.Environment, dataDir string, args []string) (fsTarget, error) {
	last := len(args) - 1
	t, err := base.Find(ctx, w, dataDir, args[:last], base.ToRead)
	if err != nil {
		return fsTarget{}, err
	}
	if t.Alloc == nil || t.Alloc.Job == nil {
		return fsTarget{}, fmt.Errorf("allocation %s: its state can't be read, so its tasks are not known; its files are in %s",
			output.ShortID(t.ID), t.Layout.Alloc(t.ID))
	}
	return fsTarget{t, allocrunner.Files(t.Layout.Alloc(t.ID), t.Alloc.GetTaskGroup()), args[last]}, nil
}

// fsArgs accepts [ALLOC] PATH.
func fsArgs(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return base.Usage(errors.New("PATH is missing: give one, such as alloc/logs"))
	case len(args) > 2:
		return base.Usage(fmt.Errorf("want one ALLOC and one PATH, not %d: unexpected %q", len(args), args[2]))
	case args[len(args)-1] == "":
		return base.Usage(errors.New("PATH is empty: give one, such as alloc/logs"))
	}
	return nil
}

// fsError says what of a file is wrong. Where it is the caller's mistake, nothing else is.
func fsError(id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("allocation %s: %w", output.ShortID(id), err)
}

func fsListCommand(w base.Environment) *cobra.Command {
	var dataDir string
	var out base.OutputFlags
	cmd := &cobra.Command{
		Use:     "ls [flags] [ALLOC] [PATH]",
		Short:   "List a directory of an allocation",
		Long:    "Lists a directory of an allocation. A single argument is PATH when it is alloc, a task's name or has a slash in it, else ALLOC.",
		Example: "  taskapi fs ls alloc/logs\n  taskapi fs ls hello greeter/local",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fsArgs(cmd, args)
		},
		ValidArgsFunction: base.CompleteTarget(&dataDir, w, base.ToRead),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := findDir(cmd.Context(), w, dataDir, args)
			if err != nil {
				return err
			}
			list, err := t.files.List(t.path, math.MaxInt)
			if err != nil {
				return fsError(t.ID, err)
			}
			return out.Print(w, list, nil, func() error { return printFiles(w, list) })
		},
	}
	base.AddDataDir(cmd, &dataDir)
	base.AddOutput(cmd, &out)
	return cmd
}

// findDir reads [ALLOC] [PATH].
func findDir(ctx context.Context, w base.Environment, dataDir string, args []string) (fsTarget, error) {
	switch {
	case len(args) == 0:
		args = []string{"/"}
	case len(args) == 1 && args[0] != "alloc" && !strings.Contains(args[0], "/"):
		t, err := base.Find(ctx, w, dataDir, args, base.Sought{Tasks: base.AnyTasks, Reads: true})
		if err == nil && t.Task == args[0] {
			return findFile(ctx, w, dataDir, []string{t.ID, args[0]})
		}
		args = append(args, "/")
	}
	return findFile(ctx, w, dataDir, args)
}

func printFiles(w base.Environment, list []*api.AllocFileInfo) error {
	table := output.Table{Colors: w.Colors()}
	table.Header("Mode", "Size", "Modified Time", "Name")
	for _, f := range list {
		name := f.Name
		if f.IsDir {
			name += "/"
		}
		table.Row(f.FileMode, strconv.FormatInt(f.Size, 10), output.Date(f.ModTime), linewriter.OneLine(name))
		if f.IsDir {
			table.Paint(3, output.Blue)
		}
	}
	_, err := table.WriteTo(w.Stdout)
	return err
}

func fsCatCommand(w base.Environment) *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:               "cat [flags] [ALLOC] PATH",
		Short:             "Print a file of an allocation",
		Long:              "Prints a file of an allocation as it is.",
		Example:           "  taskapi fs cat alloc/logs/greeter.stdout.0",
		Args:              fsArgs,
		ValidArgsFunction: base.CompleteTarget(&dataDir, w, base.ToRead),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := findFile(cmd.Context(), w, dataDir, args)
			if err != nil {
				return err
			}
			frames, err := t.files.Open(t.path, interfaces.Span{})
			if err != nil {
				return fsError(t.ID, err)
			}
			defer frames.Close()
			return follow.CopyFrames(cmd.Context(), cmd.Context(), frames, func(f *api.StreamFrame) error {
				_, err := w.Stdout.Write(f.Data)
				return err
			})
		},
	}
	base.AddDataDir(cmd, &dataDir)
	return cmd
}

func fsStatCommand(w base.Environment) *cobra.Command {
	var dataDir string
	var out base.OutputFlags
	cmd := &cobra.Command{
		Use:               "stat [flags] [ALLOC] PATH",
		Short:             "Describe a file of an allocation",
		Long:              "Describes a file of an allocation. --json prints what GET /v1/client/fs/stat/:id answers.",
		Example:           "  taskapi fs stat alloc/logs/greeter.stdout.0",
		Args:              fsArgs,
		ValidArgsFunction: base.CompleteTarget(&dataDir, w, base.ToRead),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := findFile(cmd.Context(), w, dataDir, args)
			if err != nil {
				return err
			}
			info, err := t.files.Stat(t.path)
			if err != nil {
				return fsError(t.ID, err)
			}
			return out.Print(w, info, nil, func() error {
				table := output.Table{Colors: w.Colors()}
				table.Header("Mode", "Size", "Modified Time", "Content Type", "Name")
				table.Row(info.FileMode, strconv.FormatInt(info.Size, 10), output.Date(info.ModTime), info.ContentType, linewriter.OneLine(info.Name))
				_, err := table.WriteTo(w.Stdout)
				return err
			})
		},
	}
	base.AddDataDir(cmd, &dataDir)
	base.AddOutput(cmd, &out)
	return cmd
}
