package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// version is the program's, set by the linker (-X main.version=...).
var version = "0.1.0-dev"

func versionCommand(w world) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return json.NewEncoder(w.stdout).Encode(map[string]string{"version": version, "go": runtime.Version()})
			}
			_, err := fmt.Fprint(w.stdout, versionLine())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// versionLine is what "version" and --version print.
func versionLine() string {
	return fmt.Sprintf("taskapi %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// noArgs accepts no argument.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("%q is too many: '%s' takes no argument", args[0], cmd.CommandPath()))
	}
	return nil
}
