package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completeTimeout bounds what a press of the tab key waits for.
const completeTimeout = 2 * time.Second

// completeTarget completes [ALLOC] [TASK]: IDs, and the names of what runs, or of everything for commands that read.
func completeTarget(dataDir *string, w Environment, s sought) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		switch {
		case len(args) == 0:
			return completeAllocations(ctx, w, *dataDir, begun, s), cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1 && s.tasks != noTask:
			return completeTasks(ctx, w, *dataDir, args[0], begun), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeAllocations returns what an allocation may be called that begins with a text, without what is called like another.
func completeAllocations(ctx context.Context, w Environment, dataDir, begun string, s sought) []string {
	f, err := newFinder(w, dataDir)
	if err != nil || f.look(ctx, nil) != nil {
		return nil
	}
	slices.Reverse(f.known)
	var names, ids []string
	for _, k := range f.known {
		about := "unreadable"
		if k.alloc != nil {
			about = "job " + k.alloc.JobID + ", " + k.alloc.ClientStatus
		}
		if !k.running && !s.reads && !s.exact {
			continue
		}
		if strings.HasPrefix(k.id, strings.ToLower(begun)) {
			ids = append(ids, cobra.CompletionWithDesc(k.id, about))
		}
		if k.alloc == nil || s.exact {
			continue
		}
		if strings.HasPrefix(k.alloc.JobID, begun) {
			names = append(names, cobra.CompletionWithDesc(k.alloc.JobID, "job, "+k.alloc.ClientStatus))
		}
		if s.tasks == noTask {
			continue
		}
		for _, task := range taskNames(k.alloc) {
			if strings.HasPrefix(task, begun) {
				names = append(names, cobra.CompletionWithDesc(task, "task of job "+k.alloc.JobID))
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
	found, err := find(ctx, w, dataDir, []string{alloc}, toRead)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(taskNames(found.alloc), func(task string) bool { return !strings.HasPrefix(task, begun) })
}

// completeUpdate completes an allocation, and the job file after it.
func completeUpdate(dataDir *string, w Environment) cobra.CompletionFunc {
	allocations := completeTarget(dataDir, w, toChange)
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return allocations(cmd, args, begun)
	}
}

// completeEnded completes the IDs of allocations that have ended, any number of them.
func completeEnded(dataDir *string, w Environment) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		f, err := newFinder(w, *dataDir)
		if err != nil || f.look(ctx, nil) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var ids []string
		for _, k := range f.known {
			if k.alloc != nil && !k.running && strings.HasPrefix(k.id, strings.ToLower(begun)) && !slices.Contains(args, k.id) {
				ids = append(ids, cobra.CompletionWithDesc(k.id, "job "+k.alloc.JobID+", "+k.alloc.ClientStatus))
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}
