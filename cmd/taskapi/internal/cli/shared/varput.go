package shared

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/vars"
)

// checkIndex is the flag that names the expected index.
type checkIndex struct {
	text  string
	index *uint64 // nil for any
}

func (c *checkIndex) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.text, "check-index", "", "do it only if the variable has this `INDEX`; 0: if there is none")
}

// parse reads the flag, before the command does anything.
func (c *checkIndex) parse(cmd *cobra.Command, _ []string) error {
	if !cmd.Flags().Changed("check-index") {
		return nil
	}
	index, err := strconv.ParseUint(c.text, 10, 64)
	if err != nil {
		return base.Usagef("--check-index %q must be a whole number, as 'taskapi var get' shows it", c.text)
	}
	c.index = &index
	return nil
}

type putCommandLine struct {
	varFlags
	out   base.OutputFlags
	check checkIndex
	force bool
}

func varPut(w base.Environment) *cobra.Command {
	var line putCommandLine
	cmd := &cobra.Command{
		Use:        "put [flags] PATH [SPEC] [KEY=VALUE]... | SPEC [KEY=VALUE]...",
		SuggestFor: []string{"set", "write"},
		Short:      "Write a variable",
		Long: `Writes a variable: the items of SPEC, and those given as KEY=VALUE, which win.

  SPEC   @FILE, or - for standard input: JSON as 'taskapi var get --json'
         prints it, or an object of texts
  VALUE  @FILE for what a file holds, - for standard input, or a text; an
         empty one removes the item

Every user of the machine can read the arguments of its processes: give secrets by files or standard input.

If the variable exists, give its index in SPEC or with --check-index. --force writes it without.`,
		Example: `  taskapi var put nomad/jobs/web password=@password.txt
  pass show web | taskapi var put -force nomad/jobs/web password=-
  taskapi var put -check-index 7 nomad/jobs/web @web.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return base.Usagef("PATH or SPEC is missing: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return line.run(cmd, args, w) },
	}
	line.add(cmd)
	base.AddOutput(cmd, &line.out)
	line.check.add(cmd)
	cmd.Flags().BoolVar(&line.force, "force", false, "write the variable without a check of its index")
	return cmd
}

func (l *putCommandLine) run(cmd *cobra.Command, args []string, w base.Environment) error {
	if err := l.check.parse(cmd, nil); err != nil {
		return err
	}
	expected := l.check.index
	if expected != nil && l.force {
		return base.Usagef("--force and --check-index exclude each other: give one")
	}
	v, err := l.variable(args, w)
	if err != nil {
		return base.Usage(err)
	}
	switch {
	case l.force:
		expected = nil
	case expected == nil:
		expected = &v.ModifyIndex
	}
	var written *api.Variable
	err = l.change(w, false, "var put", v.Path, func(kept *variables.Service) (err error) {
		written, _, err = kept.Put(cmd.Context(), v, expected)
		return err
	})
	if err != nil {
		return err
	}
	return l.out.Print(w, written, nil, func() error {
		return w.Printf("Created variable %q with modify index %d\n", written.Path, written.ModifyIndex)
	})
}

func (l *putCommandLine) variable(args []string, w base.Environment) (*api.Variable, error) {
	stdin := &once{reader: w.Stdin}
	spec := vars.VariableSpec{Items: map[string]string{}}
	path := ""
	if !isSource(args[0]) {
		var err error
		if path, err = vars.CheckedPath(args[0]); err != nil {
			return nil, err
		}
		args = args[1:]
		if len(args) == 0 {
			return nil, errors.New("there is nothing to write: SPEC or KEY=VALUE is missing")
		}
	}
	if len(args) > 0 && isSource(args[0]) {
		var err error
		if spec, err = vars.ReadSpec(strings.TrimPrefix(args[0], "@"), stdin); err != nil {
			return nil, err
		}
		args = args[1:]
	}
	v := &api.Variable{Namespace: spec.Namespace, Path: spec.Path, ModifyIndex: spec.ModifyIndex, Items: spec.Items}
	if path != "" && path != v.Path {
		v.Path, v.ModifyIndex = path, 0 // the index is another variable's
	}
	if namespace := namespaceOr(cmp.Or(l.namespace, spec.Namespace), w); namespace != v.Namespace {
		if v.Namespace != "" {
			v.ModifyIndex = 0
		}
		v.Namespace = namespace
	}
	return v, l.setItems(v.Items, args, stdin, w)
}

// setItems applies KEY=VALUE arguments to items, and warns of values that others can read.
func (l *putCommandLine) setItems(items map[string]string, args []string, stdin io.Reader, w base.Environment) error {
	for _, arg := range args {
		key, value, found := strings.Cut(arg, "=")
		if !found || key == "" {
			return fmt.Errorf("the argument %q must be KEY=VALUE", base.Clipped(key, 20))
		}
		switch {
		case value == "-" || strings.HasPrefix(value, "@"):
			text, err := base.ReadInput(strings.TrimPrefix(value, "@"), stdin, vars.MaxSpec)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			value = string(text)
		case value == "":
			delete(items, key)
			continue
		default:
			if rest, escaped := strings.CutPrefix(value, `\@`); escaped { // a text that begins with @
				value = "@" + rest
			}
			w.Warnf("warning: every user of this machine could read the value of %s among the arguments: give %[1]s=@FILE or "+
				"%[1]s=-", key)
		}
		items[key] = value
		if strings.ContainsFunc(key, notIdentifier) {
			w.Warnf("warning: %q has characters for which templates need the 'index' function", key)
		}
	}
	return nil
}

// notIdentifier reports whether a template can't have this letter in a key after a dot.
func notIdentifier(r rune) bool { return r != '_' && !unicode.In(r, unicode.N, unicode.L) }

// isSource reports whether an argument names a specification.
func isSource(arg string) bool { return arg == "-" || strings.HasPrefix(arg, "@") }

// once is standard input, which can be read only once.
type once struct {
	reader io.Reader
	over   bool
}

func (o *once) Read(p []byte) (int, error) {
	if o.over {
		return 0, errors.New("it can be read once: give - once")
	}
	n, err := o.reader.Read(p)
	o.over = err == io.EOF
	return n, err
}
