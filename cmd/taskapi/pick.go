package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"taskapi/allocrunner"
)

// addDataDir adds the flag of commands that need the data directory alone.
func addDataDir(cmd *cobra.Command, dataDir *string) {
	cmd.Flags().StringVar(dataDir, "data-dir", "", dataDirUsage)
}

// completeAllocation completes an ID as the first argument, and files after it.
func completeAllocation(dataDir *string, w world) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Name() == "update" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		l, err := newLayout(*dataDir, w)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ids, _ := l.allocIDs()
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// optionalAllocation accepts an allocation that may be left out.
func optionalAllocation(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case args[0] == "":
		return usage(errors.New("ALLOC is empty: give an allocation's ID or the beginning of one, or leave it out"))
	}
	return oneArg("ALLOC")(cmd, args)
}

// otherDataDir is for who looks in the wrong place.
const otherDataDir = "--data-dir or " + dataDirEnv + " names another data directory"

// pick is the allocation that the arguments name, or the only one that is not over.
func (l layout) pick(ctx context.Context, args []string) (string, error) {
	if len(args) > 0 {
		return l.find(args[0])
	}
	ids, err := l.allocIDs()
	if err != nil {
		return "", err
	}
	var running []string
	for _, id := range ids {
		f := l.look(ctx, id)
		if f.absent == nil && !f.over || f.absent != nil && allocrunner.TasksRunning(l.alloc(id)) {
			running = append(running, id)
		}
	}
	switch len(running) {
	case 0:
		return "", fmt.Errorf("no allocation runs in %s; %s", l.dir, otherDataDir)
	case 1:
		return running[0], nil
	}
	return "", usage(fmt.Errorf("%d allocations run: say which of %s", len(running), strings.Join(running, ", ")))
}

// allocIDs are the IDs of the allocations in the data directory, in order.
func (l layout) allocIDs() ([]string, error) {
	entries, err := os.ReadDir(l.allocs())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("allocations in %s: %w", l.dir, unwrapPath(err))
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && uuidForm.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// find is the allocation whose ID begins with prefix.
func (l layout) find(prefix string) (string, error) {
	ids, err := l.allocIDs()
	if err != nil {
		return "", err
	}
	var matches []string
	for _, id := range ids {
		if strings.HasPrefix(id, strings.ToLower(prefix)) {
			matches = append(matches, id)
		}
	}
	switch len(matches) {
	case 0:
		return "", fmt.Errorf("no allocation %q in %s; '%s' lists them; %s", prefix, l.dir, l.command("status"), otherDataDir)
	case 1:
		return matches[0], nil
	}
	return "", usage(fmt.Errorf("%q is the beginning of %d allocations: %s", prefix, len(matches), strings.Join(matches, ", ")))
}
