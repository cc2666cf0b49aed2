package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/client"
)

// addDataDir adds the flag of commands that need the data directory alone.
func addDataDir(cmd *cobra.Command, dataDir *string) {
	cmd.Flags().StringVar(dataDir, "data-dir", "", dataDirUsage)
}

// completeAllocation completes an ID as the first argument, and files after it.
func completeAllocation(dataDir *string, w Environment) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Name() == "update" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		l, err := newLayout(*dataDir, w)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ids, _ := l.IDs()
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// optionalAllocation accepts an allocation that may be left out.
func optionalAllocation(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case args[0] == "":
		return usage(errors.New("ALLOC is empty: give an allocation's ID or a prefix of one, or leave it out"))
	}
	return oneArg("ALLOC")(cmd, args)
}

// otherDataDir completes an error about a data directory that may be the wrong one.
const otherDataDir = "--data-dir or " + dataDirEnv + " names another data directory"

// pick returns the allocation that the arguments name, or the only one that has not ended.
func (l layout) pick(ctx context.Context, args []string) (string, error) {
	if len(args) > 0 {
		return l.find(args[0])
	}
	ids, err := l.IDs()
	if err != nil {
		return "", err
	}
	var running []string
	for _, id := range ids {
		found, err := l.locate(ctx, id)
		if err == nil && found.Holder != client.Ended || err != nil && allocrunner.TasksRunning(l.Alloc(id)) {
			running = append(running, id)
		}
	}
	switch len(running) {
	case 0:
		return "", fmt.Errorf("no allocation runs in %s; %s", string(l.Dir), otherDataDir)
	case 1:
		return running[0], nil
	}
	return "", usage(fmt.Errorf("%d allocations run: give one of %s", len(running), strings.Join(running, ", ")))
}
