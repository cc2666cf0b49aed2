// Package look has the commands that show an allocation: status, ps, checks, top, logs, events and fs, and state, which
// can also repair what it shows.
package look

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/slice"
)

func Status(w base.Environment) *cobra.Command {
	var at base.TargetFlags
	show := statusShow{environment: w}
	cmd := &cobra.Command{
		Use: "status [flags] [ALLOC]",
		SuggestFor: []string{"list", "get", "show", "describe", "inspect", "info", "allocs",
			"jobs", "pods", "images", "node", "port"},
		Aliases: []string{"ls"},
		Short:   "Show allocations, running or ended",
		Long: `Lists the allocations or, with ALLOC, shows one with its tasks and their events. For the name of a job with
several allocations, it lists these.

The list has those of your own data directory and of root's: first those that run, then those that have ended, each the
newest first.

` + base.AllocNames + `

--json prints what GET /v1/allocation/:id answers, or a list of these. A template gets the same, as the SDK's
Allocation.`,
		Example: `  taskapi status
  taskapi status hello
  taskapi status -t '{{range .}}{{.ID}} {{.ClientStatus}}{{"\n"}}{{end}}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !at.Given(args) {
				return show.list(cmd.Context(), at.DataDir)
			}
			ofJob, finder, err := at.LatestOf(cmd.Context(), args)
			if err != nil {
				return err
			}
			if len(ofJob) > 0 {
				return show.listOf(cmd.Context(), ofJob, finder)
			}
			t, err := at.Find(cmd.Context(), args)
			if err != nil {
				return err
			}
			return show.one(cmd.Context(), t)
		},
	}
	at.Add(cmd, w, base.ToRead)
	base.AddOutput(cmd, &show.output)
	cmd.Flags().BoolVarP(&show.verbose, "verbose", "v", false, "print whole IDs and, with ALLOC, the settings and "+
		"where each comes from")
	return cmd
}

type statusShow struct {
	output      base.OutputFlags
	verbose     bool
	environment base.Environment
}

// located is an allocation with where it is.
type located struct {
	client.Location
	layout base.Layout
}

// list prints a line for each allocation.
func (s *statusShow) list(ctx context.Context, dataDir string) error {
	f, err := base.NewFinder(s.environment, dataDir)
	if err != nil {
		return err
	}
	var errs []error
	var all []base.Target
	for _, l := range f.Places {
		ids, err := l.IDs()
		errs = append(errs, err)
		for _, id := range ids {
			all = append(all, base.Target{Layout: l, ID: id})
		}
	}
	return s.listOf(ctx, all, f, errs...)
}

// listOf prints a line for each of the allocations. The finder has looked for them; errors come from that.
func (s *statusShow) listOf(ctx context.Context, targets []base.Target, f *base.Finder, errs ...error) error {
	var all, unknown []located
	for _, t := range targets {
		found, err := t.Locate(ctx)
		errs = append(errs, err)
		if err == nil {
			all = append(all, located{found, t.Layout})
		} else if !errors.Is(err, state.ErrNotFound) {
			found.Alloc = &api.Allocation{ID: t.ID} // an error says why no more is known
			unknown = append(unknown, located{found, t.Layout})
		}
	}
	slices.SortStableFunc(all, func(a, b located) int { return output.CompareAllocs(a.Alloc, b.Alloc) })
	allocs, bodies := []*api.Allocation{}, []json.RawMessage{}
	for _, a := range all {
		allocs, bodies = append(allocs, a.Alloc), append(bodies, a.Body)
	}
	var whole bytes.Buffer
	if s.output.JSON {
		errs = append(errs, output.JSON(&whole, bodies))
	}
	errs = append(errs, s.output.Print(s.environment, allocs, whole.Bytes(), func() error {
		if len(all)+len(unknown) == 0 && errors.Join(errs...) == nil {
			return s.environment.Printf("no allocations in %s\n", f.Dirs())
		}
		return s.printList(append(all, unknown...), len(f.Places) > 1)
	}))
	return errors.Join(errs...)
}

func (s *statusShow) printList(all []located, dirs bool) error {
	if len(all) == 0 {
		return nil
	}
	ids := slice.Map(all, func(a located) string { return a.Alloc.ID })
	if !s.verbose {
		ids = output.ShortIDs(ids)
	}
	table := output.Table{Colors: s.environment.Colors()}
	header := []string{"ID", "Name", "Status", "Health", "Tasks", "Created"}
	if dirs {
		header = append(header, "Data directory")
	}
	table.Header(header...)
	for i, a := range all {
		dir := string(a.layout.Dir)
		if a.Alloc.Job == nil {
			table.Row([]string{ids[i], "?", "unknown", "-", "-", "-", dir}[:len(header)]...)
			continue
		}
		health, _ := base.HealthOf(a.Alloc)
		gone := tasksGone(a.layout, a.Location)
		table.Row([]string{ids[i], a.Alloc.Name, statusText(a.Location, gone), cmp.Or(health, "-"),
			cmp.Or(childCount(a.Alloc, all), taskCounts(a.Alloc, gone)),
			output.Date(time.Unix(0, a.Alloc.CreateTime)), dir}[:len(header)]...)
		table.Paint(2, output.StatusColor(a.Alloc.ClientStatus))
		table.Paint(3, output.StatusColor(health))
	}
	var text strings.Builder
	text.WriteString(table.String())
	for i, a := range all {
		if a.Holder == client.Nobody {
			fmt.Fprintf(&text, "\nThe taskapi of %s has exited, and its tasks %s.\n  resume it:  %s\n  stop it:    %s\n",
				ids[i], a.layout.TasksNow(a.Alloc.ID), a.layout.Command("takeover", ids[i]), a.layout.Command("stop", ids[i]))
		}
	}
	_, err := io.WriteString(s.environment.Stdout, text.String())
	return err
}

// childCount says how many children of a job have not ended; empty for a job that starts none.
func childCount(alloc *api.Allocation, all []located) string {
	if !interfaces.IsParent(alloc.Job) {
		return ""
	}
	n := 0
	for _, a := range all {
		if base.IsChild(a.Alloc, alloc) && !a.Alloc.ClientTerminalStatus() {
			n++
		}
	}
	return fmt.Sprintf("%d %s", n, base.Plural(n, "child", "children"))
}

// taskCounts says how many of the tasks run, have ended and so on.
func taskCounts(alloc *api.Allocation, gone bool) string {
	return output.TaskCounts(slice.Map(base.TaskNames(alloc), func(name string) *api.TaskState {
		return taskState(alloc, name, gone)
	}))
}

func (s *statusShow) one(ctx context.Context, t base.Target) error {
	found, err := t.Locate(ctx)
	if err != nil {
		return err
	}
	return s.output.Print(s.environment, found.Alloc, found.Body, func() error { return s.printAllocation(ctx, t, found) })
}

// statusText returns the allocation's status, and that its taskapi has exited before it ended. gone is tasksGone.
func statusText(found client.Location, gone bool) string {
	switch {
	case gone:
		return "not running (its taskapi has exited)"
	case found.Holder == client.Nobody:
		return found.Alloc.ClientStatus + " (its taskapi has exited)"
	}
	return found.Alloc.ClientStatus
}

// tasksGone reports that an allocation's taskapi has exited, and that none of its processes is left.
func tasksGone(l base.Layout, found client.Location) bool {
	return found.Holder == client.Nobody && l.TasksGone(found.Alloc.ID)
}

// taskState returns a task's state as it is shown; nil before there is one. What ended after the latest save does not
// run, as when its taskapi was killed, or had no room to save the end. gone is tasksGone.
func taskState(a *api.Allocation, name string, gone bool) *api.TaskState {
	state := a.TaskStates[name]
	if state == nil || !gone || state.State != "running" {
		return state
	}
	ended := *state
	ended.State = output.NotRunning
	return &ended
}
