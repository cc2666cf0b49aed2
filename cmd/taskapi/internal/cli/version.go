package cli

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func versionCommand(w Environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return json.NewEncoder(w.Stdout).Encode(map[string]string{"version": w.Version, "go": runtime.Version()})
			}
			_, err := fmt.Fprint(w.Stdout, versionLine(w))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// versionLine returns what "version" and --version print.
func versionLine(w Environment) string {
	return fmt.Sprintf("taskapi %s (%s, %s/%s)\n", w.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// noArgs accepts no argument.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("unexpected argument %q: '%s' takes none", args[0], cmd.CommandPath()))
	}
	return nil
}
