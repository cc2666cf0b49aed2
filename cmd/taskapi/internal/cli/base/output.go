package base

import (
	"encoding/json"
	"errors"
	"net"
	"strconv"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/output"
)

// OutputFlags are the flags of every command that prints data.
type OutputFlags struct {
	JSON     bool
	Template string
	Parsed   *output.Template // nil without one
}

// AddOutput adds the flags, and makes the command check them before it does anything.
func AddOutput(cmd *cobra.Command, o *OutputFlags) {
	AddOutputAs(cmd, o,
		"print JSON, as the API answers it; an error is JSON, too")
}

// AddOutputAs is AddOutput with the usage of --json.
func AddOutputAs(cmd *cobra.Command, o *OutputFlags, usage string) {
	f, before := cmd.Flags(), cmd.PreRunE
	f.BoolVar(&o.JSON, "json", false, usage)
	short := "t"
	if f.ShorthandLookup(short) != nil { // the command has another meaning for it
		short = ""
	}
	f.StringVarP(&o.Template, "template", short, "",
		"print the value of --json with a Go `TEMPLATE`, with the SDK's field names")
	cmd.PreRunE = func(cmd *cobra.Command, args []string) (err error) {
		if before != nil {
			err = before(cmd, args)
		}
		if err != nil {
			return err
		}
		if o.JSON && o.Template != "" {
			return Usagef("--json and --template exclude each other: give one")
		}
		if o.Template != "" {
			o.Parsed, err = output.ParseTemplate(o.Template)
		}
		return AsTemplateError(err)
	}
}

// AsTemplateError marks a wrong template as the caller's mistake.
func AsTemplateError(err error) error {
	if _, ok := errors.AsType[*output.TemplateError](err); ok {
		return Usagef("--template: %w", err)
	}
	return err
}

// ForPrograms reports whether the output is for programs: JSON, or a template's.
func (o *OutputFlags) ForPrograms() bool { return o.JSON || o.Parsed != nil }

// Print prints a value as JSON, by the template, or else with the function people. value is of a type of Nomad's SDK,
// so that a template has its fields; whole is the value's JSON if it is at hand, else nil.
func (o *OutputFlags) Print(w Environment, value any, whole []byte, people func() error) error {
	switch {
	case o.JSON && whole != nil:
		return output.JSON(w.Stdout, json.RawMessage(whole))
	case o.JSON:
		return output.JSON(w.Stdout, value)
	case o.Parsed != nil:
		return AsTemplateError(o.Parsed.Write(w.Stdout, value))
	}
	return people()
}

// Table prints a value as Print does, by a table for people.
func (o *OutputFlags) Table(w Environment, value any, table *output.Table) error {
	return o.Print(w, value, nil, func() error { return w.Printf("%s", table) })
}

// MaxLastLine is how much of each of these lines is printed, in letters.
const MaxLastLine = 300

// Clipped returns the beginning of a text, with a mark where it was longer.
func Clipped(text string, most int) string {
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return text
}

func AddressOf(s *api.ServiceRegistration) string {
	if s.Port == 0 {
		return s.Address
	}
	return net.JoinHostPort(s.Address, strconv.Itoa(s.Port))
}

func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
