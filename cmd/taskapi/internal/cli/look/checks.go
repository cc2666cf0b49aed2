package look

import (
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
)

func Checks(w base.Environment) *cobra.Command {
	var dataDir string
	var out base.OutputFlags
	cmd := &cobra.Command{
		Use:   "checks [flags] [ALLOC]",
		Short: "Show the latest result of each check of an allocation",
		Long: `Shows the latest result of each check of an allocation's services; of one that has ended, or whose taskapi has exited, the last one that
was saved.
` + base.AllocArgs + `

--json prints what GET /v1/client/allocation/:id/checks answers; --template is given the same, as the SDK's AllocCheckStatuses.`,
		Example: `  taskapi checks
  taskapi checks -t '{{range .}}{{.Check}} {{.Status}}{{"\n"}}{{end}}' hello`,
		Args:              base.TargetArgs(base.ToRead),
		ValidArgsFunction: base.CompleteTarget(&dataDir, w, base.ToRead),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := base.Find(cmd.Context(), w, dataDir, args, base.ToRead)
			if err != nil {
				return err
			}
			checks, err := found.Checks(cmd.Context())
			if err != nil {
				return err
			}
			return out.Print(w, checks, nil, func() error { return printChecks(w, found, checks) })
		},
	}
	base.AddDataDir(cmd, &dataDir)
	base.AddOutput(cmd, &out)
	return cmd
}

// maxOutput is how much of a check's output a line of a table has, in letters.
const maxOutput = 120

func printChecks(w base.Environment, t base.Target, checks api.AllocCheckStatuses) error {
	if len(checks) == 0 {
		_, err := fmt.Fprintf(w.Stdout, "allocation %s has no results of checks\n", output.ShortID(t.ID))
		return err
	}
	_, err := fmt.Fprint(w.Stdout, checksTable(w, checks))
	return err
}

// checksTable returns a line for each check.
func checksTable(w base.Environment, checks api.AllocCheckStatuses) string {
	table := output.Table{Colors: w.Colors()}
	table.Header("Result", "Check", "Service", "Task", "Mode", "At", "Output")
	for _, c := range base.SortedChecks(checks) {
		at := "never"
		if c.Timestamp > 0 {
			at = output.Date(time.Unix(c.Timestamp, 0))
		}
		table.Row(c.Status, c.Check, c.Service, c.Task, c.Mode, at, base.Clipped(strings.TrimSpace(c.Output), maxOutput))
		table.Paint(0, output.StatusColor(c.Status))
	}
	return table.String()
}
