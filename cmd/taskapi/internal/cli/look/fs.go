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
	var at base.TargetFlags
	var out base.OutputFlags
	cmd := &cobra.Command{
		Use:        "fs [flags] [ALLOC] [PATH]",
		SuggestFor: []string{"cp", "cat", "files"},
		Short:      "List an allocation's files, or print one",
		Long: `Lists the directory PATH of an allocation, or prints the file PATH as it is.

PATH is relative to the allocation's directory, which is listed without PATH. It shows the files that the API shows:
what the tasks share (alloc/) and the directory of each task (TASK/), but not a task's secrets and private
directories. The files are read with your own rights, and no taskapi has to run. A single argument is PATH when it is
alloc, a task's name or has a slash in it, else ALLOC.

` + base.AllocArgs + `

--json prints what GET /v1/client/fs/ls/:id answers for a directory, and GET /v1/client/fs/stat/:id for a file. A
template gets the same, as the SDK's AllocFileInfo.`,
		Example: `  taskapi fs
  taskapi fs hello greeter/local
  taskapi fs alloc/logs/greeter.stdout.0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "/"
			switch {
			case len(args) == 2:
				path, args = args[1], args[:1]
			case len(args) == 1 && (args[0] == "alloc" || at.Given(nil) || strings.Contains(args[0], "/")):
				path, args = args[0], nil
			case len(args) == 1:
				if t, err := base.Find(cmd.Context(), w, at.DataDir, args, base.ToReadTasks); err == nil && t.Task == args[0] {
					path, args = t.Task, []string{t.ID}
				}
			}
			t, err := at.Find(cmd.Context(), args)
			if err != nil {
				return err
			}
			files, err := t.Files()
			if err != nil {
				return err
			}
			if err = showFile(cmd.Context(), w, &out, files, path); err != nil && !base.IsUsage(err) {
				err = fmt.Errorf("allocation %s: %w", output.ShortID(t.ID), err)
			}
			return err
		},
	}
	at.Add(cmd, w, base.ToRead)
	base.AddOutput(cmd, &out)
	return cmd
}

// showFile lists a directory, or prints a file.
func showFile(ctx context.Context, w base.Environment, out *base.OutputFlags, files interfaces.Files,
	path string) error {
	info, err := files.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir {
		return out.Print(w, info, nil, func() error {
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
	list, err := files.List(path, math.MaxInt)
	if err != nil {
		return err
	}
	table := output.Table{Colors: w.Colors()}
	table.Header("Mode", "Size", "Modified", "Name")
	for _, f := range list {
		name, color := f.Name, output.Plain
		if f.IsDir {
			name, color = name+"/", output.Blue
		}
		table.Row(f.FileMode, strconv.FormatInt(f.Size, 10), output.Date(f.ModTime), name)
		table.Paint(3, color)
	}
	return out.Table(w, list, &table)
}
