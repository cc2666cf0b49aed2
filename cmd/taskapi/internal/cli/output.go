package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/output"
)

// outputFlags are the flags of every command that prints what it has read.
type outputFlags struct {
	json     bool
	template string
	parsed   *output.Template // nil without one
}

// addOutput adds the flags, and makes the command check them before it does anything.
func addOutput(cmd *cobra.Command, o *outputFlags) {
	f := cmd.Flags()
	f.BoolVar(&o.json, "json", false, "print JSON, as the API answers it; errors, too: an object with error and exit_code, on standard error")
	f.StringVarP(&o.template, "template", "t", "", "print what a Go `TEMPLATE` makes of what --json prints, with the names of Go's fields")
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		if o.json && o.template != "" {
			return usage(errors.New("--json and --template exclude each other: give one"))
		}
		if o.template != "" {
			o.parsed, err = output.ParseTemplate(o.template)
		}
		return asTemplateError(err)
	}
}

// asTemplateError marks a wrong template as the caller's mistake.
func asTemplateError(err error) error {
	if _, ok := errors.AsType[*output.TemplateError](err); ok {
		return usage(fmt.Errorf("--template: %w", err))
	}
	return err
}

// forPrograms reports whether the output is for programs: JSON, or a template's.
func (o *outputFlags) forPrograms() bool { return o.json || o.parsed != nil }

// print prints a value: as JSON, by the template, or else by people. value is one of Nomad's SDK, so that a template has its fields; whole
// is its JSON when that is at hand, else nil.
func (o *outputFlags) print(w Environment, value any, whole []byte, people func() error) error {
	switch {
	case o.json && whole != nil:
		return output.JSON(w.Stdout, json.RawMessage(whole))
	case o.json:
		return output.JSON(w.Stdout, value)
	case o.parsed != nil:
		return asTemplateError(o.parsed.Write(w.Stdout, value))
	}
	return people()
}

// colors says whether what the command prints is painted.
func (w Environment) colors() output.Colors { return output.ColorsFor(w.Stdout, w.getenv) }

// errorJSON is how a command with --json prints an error.
type errorJSON struct {
	Error    string `json:"error"`
	ExitCode int    `json:"exit_code"`
}

// wantsJSON reports whether a command was given --json, also after a flag that is wrong.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	flag := cmd.Flags().Lookup("json")
	if flag == nil {
		return false
	}
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return flag.Value.String() == "true" || slices.ContainsFunc(args, func(arg string) bool {
		return strings.TrimLeft(arg, "-") == "json" && strings.HasPrefix(arg, "-")
	})
}
