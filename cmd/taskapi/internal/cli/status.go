package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/handlers"
)

func statusCommand(w Environment) *cobra.Command {
	var dataDir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:        "status [flags] [ALLOC]",
		SuggestFor: []string{"ps", "ls", "list", "show", "top"},
		Short:      "Show allocations, running or ended",
		Long: `Without ALLOC, lists the allocations of the data directory. With ALLOC, an ID or a prefix of one, shows that
allocation with its tasks and their events. --json prints what GET /v1/allocation/:id answers.`,
		Args:              optionalAllocation,
		ValidArgsFunction: completeAllocation(&dataDir, w),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := newLayout(dataDir, w)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return listAllocations(cmd.Context(), l, asJSON, w.Stdout)
			}
			return showAllocation(cmd.Context(), l, args[0], asJSON, w.Stdout)
		},
	}
	addDataDir(cmd, &dataDir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, as the API answers it")
	return cmd
}

// locate returns the allocation as its taskapi answers it, or as one has left it. Errors: why there is neither.
func (l layout) locate(ctx context.Context, id string) (client.Location, error) {
	c := l.client(id)
	defer c.Close()
	found := c.Locate(ctx, client.Brief)
	switch found.Holder {
	case client.Refusing, client.Hanging:
		return found, l.errHeld(id, found.Err)
	case client.Unreadable:
		return found, l.errUnreadable(id, found.Err)
	case client.Serving:
		return found, nil
	}
	var err error
	found.Body, err = handlers.EncodeAllocation(found.Alloc)
	return found, err
}

// listAllocations prints a line for each allocation, or all of them as a JSON array.
func listAllocations(ctx context.Context, l layout, asJSON bool, out io.Writer) error {
	ids, err := l.IDs()
	if err != nil {
		return err
	}
	all := []json.RawMessage{}
	var errs []error
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if !asJSON && len(ids) > 0 {
		fmt.Fprintln(table, "ID\tJob\tGroup\tStatus\tCreated")
	}
	for _, id := range ids {
		found, err := l.locate(ctx, id)
		switch a := found.Alloc; {
		case err != nil:
			errs = append(errs, err)
		case asJSON:
			all = append(all, found.Body)
		default:
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", id, a.JobID, a.TaskGroup, statusText(found), date(time.Unix(0, a.CreateTime)))
		}
	}
	switch {
	case asJSON:
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		errs = append(errs, enc.Encode(all))
	case len(ids) == 0:
		fmt.Fprintf(out, "no allocations in %s\n", l.Dir)
	default:
		errs = append(errs, table.Flush())
	}
	return errors.Join(errs...)
}

// showAllocation prints one allocation.
func showAllocation(ctx context.Context, l layout, prefix string, asJSON bool, out io.Writer) error {
	id, err := l.find(prefix)
	if err != nil {
		return err
	}
	found, err := l.locate(ctx, id)
	if err != nil {
		return err
	}
	if asJSON {
		_, err := fmt.Fprintf(out, "%s\n", found.Body)
		return err
	}
	return printAllocation(l, found, out)
}

// statusText returns the allocation's status, and that its taskapi has exited before it ended.
func statusText(found client.Location) string {
	if found.Holder == client.Nobody {
		return found.Alloc.ClientStatus + " (its taskapi has exited)"
	}
	return found.Alloc.ClientStatus
}

func printAllocation(l layout, found client.Location, out io.Writer) error {
	a := found.Alloc
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(key, value string) { fmt.Fprintf(table, "%s\t%s\n", key, linewriter.OneLine(value)) }
	row("ID", a.ID)
	row("Name", a.Name)
	row("Status", statusText(found))
	row("Description", a.ClientDescription)
	if found.Holder == client.Nobody {
		row("Resume", l.Command("run", "--alloc-id", a.ID)+" "+withJobFile)
		row("Stop", l.Command("stop", a.ID))
	}
	row("Created", date(time.Unix(0, a.CreateTime)))
	row("Directory", l.Alloc(a.ID))
	if a.AllocatedResources != nil {
		for _, p := range a.AllocatedResources.Shared.Ports {
			row("Port "+p.Label, fmt.Sprintf("%s:%d", p.HostIP, p.Value))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
		if err := printTask(out, name, a.TaskStates[name]); err != nil {
			return err
		}
	}
	return nil
}

// printTask prints a task and its events, the oldest first.
func printTask(out io.Writer, name string, s *api.TaskState) error {
	state := s.State
	if s.Failed {
		state += " (failed)"
	}
	fmt.Fprintf(out, "\nTask %q: %s, %d %s\n", name, state, s.Restarts, plural(int(s.Restarts), "restart", "restarts"))
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, e := range s.Events {
		fmt.Fprintf(table, "  %s\t%s\t%s\n", date(time.Unix(0, e.Time)), e.Type, linewriter.OneLine(e.DisplayMessage))
	}
	return table.Flush()
}

func date(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }
