package look

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
)

func Checks(w base.Environment) *cobra.Command {
	var out base.OutputFlags
	cmd := base.OnTarget(w, base.ToRead, &cobra.Command{
		Use:        "checks [flags] [ALLOC]",
		SuggestFor: []string{"health"},
		Short:      "Show the latest result of each check of an allocation",
		Long: `Shows the latest result of each check of an allocation's services.

If the allocation's taskapi has exited, the last saved results are shown. When the allocation has ended, no
results are kept.

` + base.AllocArgs + `

--json prints what GET /v1/client/allocation/:id/checks answers. A template gets the same, as the SDK's
AllocCheckStatuses.`,
		Example: `  taskapi checks
  taskapi checks -t '{{range .}}{{.Check}} {{.Status}}{{"\n"}}{{end}}' hello`,
	}, func(ctx context.Context, found base.Target) error {
		checks, err := found.Checks(ctx)
		if err != nil {
			return err
		}
		table := checksTable(w, checks)
		table.None = fmt.Sprintf("%s has no results of checks", found)
		if found.Alloc != nil && found.Alloc.ClientTerminalStatus() {
			table.None = fmt.Sprintf("%s has ended (%s), and with it its checks: no results are kept", found,
				found.Alloc.ClientStatus)
		}
		return out.Table(w, checks, table)
	})
	base.AddOutput(cmd, &out)
	return cmd
}

// maxOutput is how much of a check's output a line of a table has, in letters.
const maxOutput = 120

func checksTable(w base.Environment, checks api.AllocCheckStatuses) *output.Table {
	table := &output.Table{Colors: w.Colors()}
	table.Header("Result", "Check", "Service", "Task", "Mode", "At", "Output")
	for _, c := range base.SortedChecks(checks) {
		at := "never"
		if c.Timestamp > 0 {
			at = output.Date(time.Unix(c.Timestamp, 0))
		}
		table.Row(c.Status, c.Check, c.Service, c.Task, c.Mode, at,
			base.Clipped(output.CheckOutput(c), maxOutput))
		table.Paint(0, output.StatusColor(c.Status))
	}
	return table
}
