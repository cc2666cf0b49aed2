package look

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/output"
)

func FS(w base.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fs",
		Short: "Show the files of an allocation, that runs or has ended",
		Long: `Shows the files that the API shows: those that an allocation's tasks share (alloc/) and those of each task
(TASK/), except a task's directories secrets and private. PATH is relative to the allocation directory.
` + base.AllocArgs + `

The files are read from the data directory with the rights of the user who runs the command.`,
		Example: `  taskapi fs ls
  taskapi fs cat hello greeter/local/greeting`,
	}
	cmd.AddCommand(fsList(w), fsCat(w), fsStat(w))
	return cmd
}

// onFile completes a command about a file of an allocation, and gives do the files and PATH.
func onFile(w base.Environment, cmd *cobra.Command, do func(context.Context, interfaces.Files,
	string) error) *cobra.Command {
	var dataDir string
	base.AddDataDir(cmd, &dataDir)
	cmd.ValidArgsFunction = base.CompleteTarget(&dataDir, w, base.ToRead)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, last := "/", len(args)-1
		switch {
		case len(args) == 2, len(args) == 1 && (cmd.Name() != "ls" || args[0] == "alloc" || strings.Contains(args[0], "/")):
			path, args = args[last], args[:last]
		case len(args) == 1:
			if t, err := base.Find(cmd.Context(), w, dataDir, args, base.ToReadTasks); err == nil && t.Task == args[0] {
				path, args = t.Task, []string{t.ID}
			}
		}
		t, err := base.Find(cmd.Context(), w, dataDir, args, base.ToRead)
		if err != nil {
			return err
		}
		files, err := t.Files()
		if err != nil {
			return err
		}
		if err = do(cmd.Context(), files, path); err != nil && !base.IsUsage(err) {
			err = fmt.Errorf("allocation %s: %w", output.ShortID(t.ID), err)
		}
		return err
	}
	return cmd
}

func fsList(w base.Environment) *cobra.Command {
	var out base.OutputFlags
	cmd := onFile(w, &cobra.Command{
		Use:   "ls [flags] [ALLOC] [PATH]",
		Short: "List a directory of an allocation",
		Long: "Lists a directory of an allocation. A single argument is PATH when it is alloc, a task's name or has a " +
			"slash in it, else ALLOC.",
		Example: "  taskapi fs ls alloc/logs\n  taskapi fs ls hello greeter/local",
	}, func(_ context.Context, files interfaces.Files, path string) error {
		list, err := files.List(path, math.MaxInt)
		if err != nil {
			return err
		}
		table := output.Table{Colors: w.Colors()}
		table.Header("Mode", "Size", "Modified Time", "Name")
		for _, f := range list {
			name, color := f.Name, output.Plain
			if f.IsDir {
				name, color = name+"/", output.Blue
			}
			table.Row(f.FileMode, strconv.FormatInt(f.Size, 10), output.Date(f.ModTime), name)
			table.Paint(3, color)
		}
		return out.Table(w, list, &table)
	})
	base.AddOutput(cmd, &out)
	return cmd
}

func fsCat(w base.Environment) *cobra.Command {
	return onFile(w, &cobra.Command{
		Use:     "cat [flags] [ALLOC] PATH",
		Short:   "Print a file of an allocation",
		Long:    "Prints a file of an allocation as it is.",
		Example: "  taskapi fs cat alloc/logs/greeter.stdout.0",
	}, func(ctx context.Context, files interfaces.Files, path string) error {
		frames, err := files.Open(path, interfaces.Span{})
		if err != nil {
			return err
		}
		defer frames.Close()
		return follow.CopyFrames(ctx, ctx, frames, func(f *api.StreamFrame) error {
			_, err := w.Stdout.Write(f.Data)
			return err
		})
	})
}

func fsStat(w base.Environment) *cobra.Command {
	var out base.OutputFlags
	cmd := onFile(w, &cobra.Command{
		Use:     "stat [flags] [ALLOC] PATH",
		Short:   "Describe a file of an allocation",
		Long:    "Describes a file of an allocation. --json prints what GET /v1/client/fs/stat/:id answers.",
		Example: "  taskapi fs stat alloc/logs/greeter.stdout.0",
	}, func(_ context.Context, files interfaces.Files, path string) error {
		info, err := files.Stat(path)
		if err != nil {
			return err
		}
		table := output.Table{Colors: w.Colors()}
		table.Header("Mode", "Size", "Modified Time", "Content Type", "Name")
		table.Row(info.FileMode, strconv.FormatInt(info.Size, 10), output.Date(info.ModTime), info.ContentType, info.Name)
		return out.Table(w, info, &table)
	})
	base.AddOutput(cmd, &out)
	return cmd
}
