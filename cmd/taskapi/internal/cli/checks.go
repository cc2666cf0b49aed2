package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
)

func checksCommand(w Environment) *cobra.Command {
	var dataDir string
	var out outputFlags
	cmd := &cobra.Command{
		Use:   "checks [flags] [ALLOC]",
		Short: "Show the latest result of each check of an allocation",
		Long: `Shows the latest result of each check of an allocation's services; of one that has ended, or whose taskapi has exited, the last one that
was saved.
` + allocArgs + `

--json prints what GET /v1/client/allocation/:id/checks answers; --template is given the same, as the SDK's AllocCheckStatuses.`,
		Example: `  taskapi checks
  taskapi checks -t '{{range .}}{{.Check}} {{.Status}}{{"\n"}}{{end}}' hello`,
		Args:              targetArgs(toRead),
		ValidArgsFunction: completeTarget(&dataDir, w, toRead),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := find(cmd.Context(), w, dataDir, args, toRead)
			if err != nil {
				return err
			}
			checks, err := found.checks(cmd.Context())
			if err != nil {
				return err
			}
			return out.print(w, checks, nil, func() error { return printChecks(w, found, checks) })
		},
	}
	addDataDir(cmd, &dataDir)
	addOutput(cmd, &out)
	return cmd
}

// checks returns the latest results of the allocation's checks, as its taskapi answers them or as they were saved.
func (t target) checks(ctx context.Context) (checks api.AllocCheckStatuses, err error) {
	err = t.ask(ctx, func(_ *client.Client, sdk *api.Client) error {
		checks, err = sdk.Allocations().Checks(t.id, (&api.QueryOptions{}).WithContext(ctx))
		return err
	})
	if err == nil {
		return checks, nil
	}
	found, locateErr := t.layout.locate(ctx, t.id)
	if locateErr != nil || found.Saved == nil {
		return nil, err
	}
	if found.Saved.Checks == nil {
		return api.AllocCheckStatuses{}, nil
	}
	return found.Saved.Checks, nil
}

// sortedChecks returns the results by service and check.
func sortedChecks(checks api.AllocCheckStatuses) []api.AllocCheckStatus {
	return slices.SortedFunc(maps.Values(checks), func(a, b api.AllocCheckStatus) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Check, b.Check), cmp.Compare(a.ID, b.ID))
	})
}

// maxOutput is how much of a check's output a line of a table has, in letters.
const maxOutput = 120

func printChecks(w Environment, t target, checks api.AllocCheckStatuses) error {
	if len(checks) == 0 {
		_, err := fmt.Fprintf(w.Stdout, "allocation %s has no results of checks\n", output.ShortID(t.id))
		return err
	}
	_, err := fmt.Fprint(w.Stdout, checksTable(w, checks))
	return err
}

// checksTable returns a line for each check.
func checksTable(w Environment, checks api.AllocCheckStatuses) string {
	table := output.Table{Colors: w.colors()}
	table.Header("Result", "Check", "Service", "Task", "Mode", "At", "Output")
	for _, c := range sortedChecks(checks) {
		at := "never"
		if c.Timestamp > 0 {
			at = output.Date(time.Unix(c.Timestamp, 0))
		}
		table.Row(c.Status, c.Check, c.Service, c.Task, c.Mode, at, clipped(strings.TrimSpace(c.Output), maxOutput))
		table.Paint(0, output.StatusColor(c.Status))
	}
	return table.String()
}

// clipped returns the beginning of a text, with a mark where it was longer.
func clipped(text string, most int) string {
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return text
}
