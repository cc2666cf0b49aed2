package base

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completeTimeout bounds what a press of the tab key waits for.
const completeTimeout = 2 * time.Second

// CompleteTarget completes [ALLOC] [TASK]: IDs and names of running allocations, or of all allocations for commands
// that read. The shell completes a JOBFILE after it.
func CompleteTarget(dataDir *string, w Environment, s Sought) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) (all []string, _ cobra.ShellCompDirective) {
		if len(args) == 0 {
			all = complete(cmd, *dataDir, w, begun, s.choices)
		}
		switch {
		case strings.HasSuffix(cmd.Use, "JOBFILE"):
			return all, cobra.ShellCompDirectiveDefault
		case len(args) == 1 && s.Tasks != NoTask, len(args) > 1 && s.Tasks == SomeTasks:
			found, _ := Find(cmd.Context(), w, *dataDir, args[:1], ToRead) // none, then
			all = slices.DeleteFunc(TaskNames(found.Alloc), func(task string) bool {
				return !strings.HasPrefix(task, begun) || slices.Contains(args[1:], task)
			})
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteEnded completes the IDs of allocations that have ended, any number of them.
func CompleteEnded(dataDir *string, w Environment) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		return complete(cmd, *dataDir, w, begun, func(k known, _ bool) []string {
			if k.Alloc == nil || k.Running || slices.Contains(args, k.ID) {
				return nil
			}
			return []string{k.completion()}
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// complete returns the choices that begin with a text, each name once, of all allocations in the order of status.
// choices is also given whether several allocations of the job run.
func complete(cmd *cobra.Command, dataDir string, w Environment, begun string,
	choices func(k known, several bool) []string) (all []string) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	f, err := Look(ctx, w, dataDir)
	if err != nil {
		return nil
	}
	seen, running := map[string]bool{}, map[string]int{}
	for _, k := range f.Known {
		if k.Running && k.Alloc != nil {
			running[k.Alloc.JobID]++
		}
	}
	for _, k := range slices.Backward(f.Known) {
		for _, choice := range choices(k, k.Alloc != nil && running[k.Alloc.JobID] > 1) {
			name, _, _ := strings.Cut(choice, "\t")
			if !seen[name] && (strings.HasPrefix(name, begun) || name == k.ID && strings.HasPrefix(name,
				strings.ToLower(begun))) {
				all = append(all, choice)
			}
			seen[name] = true
		}
	}
	return all
}

// choices returns how the arguments of a command may name an allocation and its tasks: where several allocations of a
// job run, by its own name instead of its job's.
func (s Sought) choices(k known, several bool) []string {
	switch {
	case !k.Running && !s.Reads && !s.exact:
		return nil
	case k.Alloc == nil || s.exact:
		return []string{k.completion()}
	}
	all := []string{k.completion()}
	switch {
	case !several:
		all = append(all, cobra.CompletionWithDesc(k.Alloc.JobID, "job, "+k.Alloc.ClientStatus))
	case k.Running:
		all = append(all, cobra.CompletionWithDesc(k.Alloc.Name, "allocation, "+k.Alloc.ClientStatus))
	}
	if s.Tasks != NoTask && !s.Whole {
		for _, task := range TaskNames(k.Alloc) {
			all = append(all, cobra.CompletionWithDesc(task, "task of job "+k.Alloc.JobID))
		}
	}
	return all
}

func (k known) completion() string {
	if k.Alloc == nil {
		return cobra.CompletionWithDesc(k.ID, "unreadable")
	}
	return cobra.CompletionWithDesc(k.ID, k.Alloc.Name+", "+k.Alloc.ClientStatus)
}
