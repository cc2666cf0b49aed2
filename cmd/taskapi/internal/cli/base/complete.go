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

// CompleteTarget completes [ALLOC] [TASK]: IDs, and the names of what runs, or of everything for commands that read.
func CompleteTarget(dataDir *string, w Environment, s Sought) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		switch {
		case len(args) == 0:
			return completeAllocations(ctx, w, *dataDir, begun, s), cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1 && s.Tasks != NoTask:
			return completeTasks(ctx, w, *dataDir, args[0], begun), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeAllocations returns what an allocation may be called that begins with a text, without what is called like another.
func completeAllocations(ctx context.Context, w Environment, dataDir, begun string, s Sought) []string {
	f, err := NewFinder(w, dataDir)
	if err != nil || f.Look(ctx, nil) != nil {
		return nil
	}
	slices.Reverse(f.Known)
	var names, ids []string
	for _, k := range f.Known {
		about := "unreadable"
		if k.Alloc != nil {
			about = "job " + k.Alloc.JobID + ", " + k.Alloc.ClientStatus
		}
		if !k.Running && !s.Reads && !s.exact {
			continue
		}
		if strings.HasPrefix(k.ID, strings.ToLower(begun)) {
			ids = append(ids, cobra.CompletionWithDesc(k.ID, about))
		}
		if k.Alloc == nil || s.exact {
			continue
		}
		if strings.HasPrefix(k.Alloc.JobID, begun) {
			names = append(names, cobra.CompletionWithDesc(k.Alloc.JobID, "job, "+k.Alloc.ClientStatus))
		}
		if s.Tasks == NoTask {
			continue
		}
		for _, task := range TaskNames(k.Alloc) {
			if strings.HasPrefix(task, begun) {
				names = append(names, cobra.CompletionWithDesc(task, "task of job "+k.Alloc.JobID))
			}
		}
	}
	return append(firstOfEach(names), ids...)
}

// firstOfEach removes completions of the same name as one before.
func firstOfEach(completions []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(completions, func(c string) bool {
		name, _, _ := strings.Cut(c, "\t")
		was := seen[name]
		seen[name] = true
		return was
	})
}

// completeTasks returns the tasks of an allocation that begin with a text.
func completeTasks(ctx context.Context, w Environment, dataDir, alloc, begun string) []string {
	found, err := Find(ctx, w, dataDir, []string{alloc}, ToRead)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(TaskNames(found.Alloc), func(task string) bool { return !strings.HasPrefix(task, begun) })
}

// CompleteUpdate completes an allocation, and the job file after it.
func CompleteUpdate(dataDir *string, w Environment) cobra.CompletionFunc {
	allocations := CompleteTarget(dataDir, w, ToChange)
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return allocations(cmd, args, begun)
	}
}

// CompleteEnded completes the IDs of allocations that have ended, any number of them.
func CompleteEnded(dataDir *string, w Environment) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		f, err := NewFinder(w, *dataDir)
		if err != nil || f.Look(ctx, nil) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var ids []string
		for _, k := range f.Known {
			if k.Alloc != nil && !k.Running && strings.HasPrefix(k.ID, strings.ToLower(begun)) && !slices.Contains(args, k.ID) {
				ids = append(ids, cobra.CompletionWithDesc(k.ID, "job "+k.Alloc.JobID+", "+k.Alloc.ClientStatus))
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}
