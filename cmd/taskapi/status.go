package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/handlers"
)

func statusCommand(w world) *cobra.Command {
	var dataDir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:        "status [flags] [ALLOC]",
		SuggestFor: []string{"ps", "ls", "list", "show", "top"},
		Short:      "Show allocations, running or ended",
		Long: `Without ALLOC, lists the allocations of the data directory. With ALLOC, an ID or the beginning of one, shows that
allocation with its tasks and their events. --json prints what GET /v1/allocation/:id answers.`,
		Args:              optionalAllocation,
		ValidArgsFunction: completeAllocation(&dataDir, w),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := newLayout(dataDir, w)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return listAllocations(cmd.Context(), l, asJSON, w.stdout)
			}
			return showAllocation(cmd.Context(), l, args[0], asJSON, w.stdout)
		},
	}
	addDataDir(cmd, &dataDir)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, as the API answers it")
	return cmd
}

// found is an allocation as it was found: asked of the sidecar that runs it, or read from what one has left.
type found struct {
	alloc  *api.Allocation
	wire   []byte // as the API answers it
	live   bool
	over   bool  // by what was left: nothing of it will run any more
	absent error // why there is no alloc
}

// lookTimeout is how long an allocation is asked again whose state somebody has and who does not answer.
const lookTimeout = 2 * time.Second

// look asks the allocation's sidecar, and reads its state when none answers.
func (l layout) look(ctx context.Context, id string) found {
	c := l.client(id)
	defer c.close()
	alloc, wire, liveErr := c.allocation(ctx)
	if liveErr == nil {
		return found{alloc: alloc, wire: wire, live: true}
	}
	saved, err := l.saved(id)
	for since := time.Now(); errors.Is(err, state.ErrInUse); saved, err = l.saved(id) {
		if ctx.Err() != nil || time.Since(since) > lookTimeout || errors.Is(liveErr, context.DeadlineExceeded) {
			return found{absent: l.errMute(id, liveErr)}
		}
		time.Sleep(startPause) // it begins, ends or is replaced just now
		if alloc, wire, liveErr = c.allocation(ctx); liveErr == nil {
			return found{alloc: alloc, wire: wire, live: true}
		}
	}
	if errors.Is(err, state.ErrNotFound) {
		return found{absent: l.errNoState(id)}
	}
	if err != nil {
		return found{absent: fmt.Errorf("allocation %s: %w", id, err)}
	}
	wire, err = handlers.EncodeAllocation(saved.Alloc)
	return found{alloc: saved.Alloc, wire: wire, over: saved.Over, absent: err}
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
		f := l.look(ctx, id)
		switch {
		case f.absent != nil:
			errs = append(errs, f.absent)
		case asJSON:
			all = append(all, f.wire)
		default:
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", id, f.alloc.JobID, f.alloc.TaskGroup, f.status(), date(time.Unix(0, f.alloc.CreateTime)))
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
	f := l.look(ctx, id)
	if f.absent != nil {
		return f.absent
	}
	if asJSON {
		_, err := fmt.Fprintf(out, "%s\n", strings.TrimSpace(string(f.wire)))
		return err
	}
	return f.print(l, out)
}

// left reports that the allocation is not over and nobody looks after it: its taskapi was killed. Its tasks may still run.
func (f found) left() bool { return !f.live && !f.over }

// status is the allocation's, and that nobody runs it when that is so and it should.
func (f found) status() string {
	if f.left() {
		return f.alloc.ClientStatus + " (its taskapi is gone)"
	}
	return f.alloc.ClientStatus
}

func (f found) print(l layout, out io.Writer) error {
	a := f.alloc
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(key, value string) { fmt.Fprintf(table, "%s\t%s\n", key, linewriter.OneLine(value)) }
	row("ID", a.ID)
	row("Name", a.Name)
	row("Status", f.status())
	row("Description", a.ClientDescription)
	if f.left() {
		row("Go on", l.Command("run", "--alloc-id", a.ID)+" "+withJobFile+" takes over the tasks that still run; "+l.Command("stop", a.ID)+" ends them")
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
