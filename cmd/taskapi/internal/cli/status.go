package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/handlers"
)

func statusCommand(w Environment) *cobra.Command {
	var dataDir string
	show := statusShow{environment: w}
	cmd := &cobra.Command{
		Use:        "status [flags] [ALLOC]",
		SuggestFor: []string{"ps", "ls", "list", "show", "top"},
		Short:      "Show allocations, running or ended",
		Long: `Without ALLOC, lists the allocations of this user's data directory and of root's, the newest first. With ALLOC, shows that allocation
with its tasks and their events. ` + allocArgs + `

--json prints what GET /v1/allocation/:id answers, or an array of these; --template is given the same, as the SDK's Allocation.`,
		Example: `  taskapi status
  taskapi status hello
  taskapi status -t '{{range .}}{{.ID}} {{.ClientStatus}}{{"\n"}}{{end}}'`,
		Args:              targetArgs(toRead),
		ValidArgsFunction: completeTarget(&dataDir, w, toRead),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return show.list(cmd.Context(), dataDir)
			}
			return show.one(cmd.Context(), dataDir, args)
		},
	}
	addDataDir(cmd, &dataDir)
	addOutput(cmd, &show.output)
	cmd.Flags().BoolVarP(&show.verbose, "verbose", "v", false, "print whole IDs")
	return cmd
}

// statusShow is taskapi status.
type statusShow struct {
	output      outputFlags
	verbose     bool
	environment Environment
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

// located is an allocation with where it is.
type located struct {
	client.Location
	layout layout
}

// list prints a line for each allocation, the newest first.
func (s *statusShow) list(ctx context.Context, dataDir string) error {
	f, err := newFinder(s.environment, dataDir)
	if err != nil {
		return err
	}
	var errs []error
	all := []located{}
	for _, l := range f.places {
		ids, err := l.IDs()
		errs = append(errs, err)
		for _, id := range ids {
			found, err := l.locate(ctx, id)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			all = append(all, located{found, l})
		}
	}
	slices.SortStableFunc(all, func(a, b located) int { return cmp.Compare(b.Alloc.CreateTime, a.Alloc.CreateTime) })
	allocs, bodies := []*api.Allocation{}, []json.RawMessage{}
	for _, a := range all {
		allocs, bodies = append(allocs, a.Alloc), append(bodies, a.Body)
	}
	var whole bytes.Buffer
	if s.output.json {
		errs = append(errs, output.JSON(&whole, bodies))
	}
	errs = append(errs, s.output.print(s.environment, allocs, whole.Bytes(), func() error {
		if len(all) == 0 && errors.Join(errs...) == nil {
			_, err := fmt.Fprintf(s.environment.Stdout, "no allocations in %s\n", f.dirs())
			return err
		}
		return s.printList(all, len(f.places) > 1)
	}))
	return errors.Join(errs...)
}

// printList prints the table of allocations.
func (s *statusShow) printList(all []located, dirs bool) error {
	if len(all) == 0 {
		return nil
	}
	var ids []string
	for _, a := range all {
		ids = append(ids, a.Alloc.ID)
	}
	if !s.verbose {
		ids = output.ShortIDs(ids)
	}
	table := output.Table{Colors: s.environment.colors()}
	header := []string{"ID", "Job", "Group", "Status", "Created"}
	if dirs {
		header = append(header, "Data directory")
	}
	table.Header(header...)
	for i, a := range all {
		row := []string{ids[i], a.Alloc.JobID, a.Alloc.TaskGroup, statusText(a.Location), output.Date(time.Unix(0, a.Alloc.CreateTime))}
		if dirs {
			row = append(row, string(a.layout.Dir))
		}
		table.Row(row...)
		table.Paint(3, output.StatusColor(a.Alloc.ClientStatus))
	}
	_, err := table.WriteTo(s.environment.Stdout)
	return err
}

// one prints one allocation.
func (s *statusShow) one(ctx context.Context, dataDir string, args []string) error {
	t, err := find(ctx, s.environment, dataDir, args, toRead)
	if err != nil {
		return err
	}
	found, err := t.layout.locate(ctx, t.id)
	if err != nil {
		return err
	}
	return s.output.print(s.environment, found.Alloc, found.Body, func() error { return s.printAllocation(t.layout, found) })
}

// statusText returns the allocation's status, and that its taskapi has exited before it ended.
func statusText(found client.Location) string {
	if found.Holder == client.Nobody {
		return found.Alloc.ClientStatus + " (its taskapi has exited)"
	}
	return found.Alloc.ClientStatus
}

func (s *statusShow) printAllocation(l layout, found client.Location) error {
	a, out := found.Alloc, s.environment.Stdout
	table := output.Table{Colors: s.environment.colors()}
	table.Row("ID", a.ID)
	table.Row("Name", a.Name)
	table.Row("Status", statusText(found))
	table.Paint(1, output.StatusColor(a.ClientStatus))
	table.Row("Description", a.ClientDescription)
	if found.Holder == client.Nobody {
		table.Row("Resume", l.Command("run", "--alloc-id", a.ID)+" "+withJobFile)
		table.Row("Stop", l.Command("stop", a.ID))
	}
	table.Row("Created", output.Date(time.Unix(0, a.CreateTime)))
	table.Row("Directory", l.Alloc(a.ID))
	if a.AllocatedResources != nil {
		for _, p := range a.AllocatedResources.Shared.Ports {
			table.Row("Port "+p.Label, fmt.Sprintf("%s:%d", p.HostIP, p.Value))
		}
	}
	if _, err := table.WriteTo(out); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
		if err := s.printTask(name, a.TaskStates[name]); err != nil {
			return err
		}
	}
	return nil
}

// printTask prints a task and its events, the oldest first.
func (s *statusShow) printTask(name string, state *api.TaskState) error {
	colors := s.environment.colors()
	text, color := state.State, output.StatusColor(state.State)
	if state.Failed {
		text, color = text+" (failed)", output.Red
	}
	table := output.Table{Colors: colors, Indent: 2}
	for _, e := range state.Events {
		table.Row(output.Date(time.Unix(0, e.Time)), e.Type, e.DisplayMessage)
	}
	_, err := fmt.Fprintf(s.environment.Stdout, "\nTask %q: %s, %d %s\n%s", name, colors.Paint(color, text), state.Restarts,
		plural(int(state.Restarts), "restart", "restarts"), table.String())
	return err
}
