// Package shared has the commands about what the allocations of a data directory share: variables with their locks, and
// services.
package shared

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/vars"
	"taskapi/cmd/taskapi/internal/output"
)

// Var is the tree of taskapi var, after Nomad's.
func Var(w base.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "var",
		SuggestFor: []string{"secret", "secrets", "variable", "variables", "configmap"},
		Short:      "Read and write Nomad's variables, and run a command under a lock",
		Long: `Reads and writes variables, which hold items of text, and runs a command under a variable's lock.

Variables are sealed in the data directory. A task reads those at nomad/jobs, nomad/jobs/JOB, nomad/jobs/JOB/GROUP and
nomad/jobs/JOB/GROUP/TASK over its socket. These commands work on the data directory itself: no allocation has to run,
and a running one sees a change immediately.`,
		Example: `  taskapi var put nomad/jobs/web password=@password.txt
  taskapi var get -item password nomad/jobs/web`,
	}
	cmd.AddCommand(varPut(w), varGet(w), varList(w), base.IsDestructive(varPurge(w)), varLock(w),
		base.IsDestructive(varUnlock(w)))
	return cmd
}

type varFlags struct {
	base.KeyFlags
	namespace string
}

func (f *varFlags) add(cmd *cobra.Command) {
	f.Add(cmd)
	cmd.Flags().StringVar(&f.namespace, "namespace", "",
		"`NAMESPACE` of the variable (default $NOMAD_NAMESPACE, else "+api.DefaultNamespace+")")
}

// in returns the namespace that the command is about.
func (f *varFlags) in(w base.Environment) string { return namespaceOr(f.namespace, w) }

// namespaceOr returns the namespace that a flag names, or else the one that Nomad's commands are about.
func namespaceOr(named string, w base.Environment) string {
	return cmp.Or(named, w.Getenv("NOMAD_NAMESPACE"), api.DefaultNamespace)
}

// errNoVariables is a data directory that has never had any.
var errNoVariables = errors.New("no variables")

// use opens the data directory's variables while do runs. If there have never been any, they are made, or with
// mustExist the error is errNoVariables.
func (f *varFlags) use(w base.Environment, mustExist bool, do func(kept *variables.Service) error) error {
	l, err := base.NewLayout(f.DataDir, w)
	if err != nil {
		return err
	}
	if _, err := os.Stat(l.Keyring()); mustExist && errors.Is(err, fs.ErrNotExist) && !l.Shares() {
		if !l.HasCluster() {
			return errNoVariables
		}
		return fmt.Errorf("the key ring %s is gone, with which the variables in %s are sealed: restore it; the next "+
			"'taskapi run' or 'taskapi var put' makes another one, which opens none of them", l.Keyring(), l.Cluster())
	}
	return vars.Use(l, f.SealKey, do)
}

// change is use for a command that writes: the audit logs get a line with the command and the path.
func (f *varFlags) change(
	w base.Environment, mustExist bool, command, path string, do func(kept *variables.Service) error,
) error {
	l, err := base.NewLayout(f.DataDir, w)
	if err != nil {
		return err
	}
	return l.Audited(w, fmt.Sprintf("%s: %s in namespace %s", command, path, f.in(w)), func() (string, error) {
		return "", f.use(w, mustExist, do)
	})
}

func variableTable(w base.Environment, v *api.Variable) string {
	about := output.Table{}
	about.Row("Namespace", "=", v.Namespace)
	about.Row("Path", "=", v.Path)
	about.Row("Create Time", "=", output.Date(time.Unix(0, v.CreateTime)))
	if v.ModifyTime != v.CreateTime {
		about.Row("Modify Time", "=", output.Date(time.Unix(0, v.ModifyTime)))
	}
	about.Row("Check Index", "=", fmt.Sprint(v.ModifyIndex))
	if v.Lock != nil {
		about.Row("Lock", "=", fmt.Sprintf("held, TTL %s, delay %s", v.Lock.TTL, v.Lock.LockDelay))
	}
	items := output.Table{Colors: w.Colors()}
	for _, key := range slices.Sorted(maps.Keys(v.Items)) {
		items.Row(key, "=", v.Items[key])
	}
	return about.String() + "\nItems\n" + items.String()
}

// onVariable completes a command that does something with the variable at PATH.
func onVariable(cmd *cobra.Command, do func(ctx context.Context, flags *varFlags, path string) error) *cobra.Command {
	var flags varFlags
	flags.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := vars.CheckedPath(args[0])
		if err != nil {
			return err
		}
		return do(cmd.Context(), &flags, path)
	}
	return cmd
}

func varGet(w base.Environment) *cobra.Command {
	var out base.OutputFlags
	var item string
	cmd := onVariable(&cobra.Command{
		Use:        "get [flags] PATH",
		SuggestFor: []string{"read", "show"},
		Short:      "Print a variable",
		Long: `Prints a variable or, with --item, the value of one item as it is, without a line feed.

--json prints what GET /v1/var/:path answers. A template gets the same, as the SDK's Variable.`,
		Example: `  taskapi var get nomad/jobs/web
  taskapi var get -item password nomad/jobs/web
  taskapi var get -t '{{.Items.password}}' nomad/jobs/web`,
	}, func(ctx context.Context, flags *varFlags, path string) error {
		var v *api.Variable
		err := flags.use(w, true, func(kept *variables.Service) (err error) {
			v, _, err = kept.Read(ctx, flags.in(w), path)
			return err
		})
		switch {
		case errors.Is(err, errNoVariables), err == nil && v == nil:
			return fmt.Errorf("variable not found: there is no %q in namespace %q", path, flags.in(w))
		case err != nil:
			return err
		case item == "":
			return out.Print(w, v, nil, func() error { return w.Printf("%s", variableTable(w, v)) })
		}
		value, ok := v.Items[item]
		if !ok {
			return fmt.Errorf("variable %q does not contain %q item", path, item)
		}
		return w.Printf("%s", value)
	})
	base.AddOutput(cmd, &out)
	cmd.Flags().StringVar(&item, "item", "", "print the value of this `ITEM` alone")
	return cmd
}

func varPurge(w base.Environment) *cobra.Command {
	var check checkIndex
	cmd := onVariable(&cobra.Command{
		Use:        "purge [flags] PATH",
		SuggestFor: []string{"delete", "rm", "remove"},
		Short:      "Delete a variable",
		Long:       `Deletes a variable, if there is one. A locked variable can't be deleted.`,
		Example:    `  taskapi var purge nomad/jobs/web`,
		PreRunE:    check.parse,
	}, func(ctx context.Context, flags *varFlags, path string) error {
		missing := false
		err := flags.change(w, check.index == nil, "var purge", path, func(kept *variables.Service) error {
			found, _, readErr := kept.Read(ctx, flags.in(w), path) // a damaged one can be purged
			missing = found == nil && readErr == nil
			_, err := kept.Delete(ctx, flags.in(w), path, check.index)
			return err
		})
		if err != nil && !errors.Is(err, errNoVariables) {
			return err
		}
		if missing || err != nil {
			w.Warnf("warning: there is no variable %q in namespace %q", path, flags.in(w))
		}
		return w.Printf("Successfully purged variable %q!\n", path)
	})
	check.add(cmd)
	return cmd
}

func varUnlock(w base.Environment) *cobra.Command {
	var force bool
	cmd := onVariable(&cobra.Command{
		Use:   "unlock [flags] PATH",
		Short: "Break the lock of a variable",
		Long: `Ends the lock of a variable and its delay, so that others can acquire it at once.

The items stay. The holder gets no warning; it learns of the break when it renews the lock. 'taskapi var lock' then
kills its command.`,
		Example: `  taskapi var unlock --force nightly/backup`,
	}, func(ctx context.Context, flags *varFlags, path string) error {
		if !force {
			return base.Usagef("the holder relies on the lock until it renews it: give --force to break it nevertheless")
		}
		err := flags.change(w, true, "var unlock", path, func(kept *variables.Service) error {
			return kept.Unlock(ctx, flags.in(w), path)
		})
		switch {
		case errors.Is(err, errNoVariables), errors.Is(err, variables.ErrNotFound):
			return fmt.Errorf("there is no variable %q in namespace %q", path, flags.in(w))
		case errors.Is(err, variables.ErrNotLocked):
			return fmt.Errorf("variable %q has no lock", path)
		case err != nil:
			return err
		}
		return w.Printf("The lock of variable %q is broken\n", path)
	})
	cmd.Flags().BoolVar(&force, "force", false, "break a lock that somebody holds")
	return cmd
}

func varList(w base.Environment) *cobra.Command {
	var flags varFlags
	var out base.OutputFlags
	cmd := &cobra.Command{
		Use:        "list [flags] [PREFIX]",
		SuggestFor: []string{"ls"},
		Short:      "List variables, without their items",
		Long: `Lists the variables of a namespace whose paths begin with PREFIX, without their items.

--json prints what GET /v1/vars answers. A template gets the same, a list of the SDK's VariableMetadata.`,
		Example: `  taskapi var list
  taskapi var list nomad/jobs/
  taskapi var list -t '{{range .}}{{.Path}} {{.ModifyIndex}}{{"\n"}}{{end}}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			list := []*api.VariableMetadata{}
			err := flags.use(w, true, func(kept *variables.Service) (err error) {
				list, _, err = kept.List(cmd.Context(), flags.in(w), strings.Join(args, ""), variables.Everything)
				return err
			})
			if err != nil && !errors.Is(err, errNoVariables) {
				return err
			}
			table := &output.Table{Colors: w.Colors(), None: "No matching variables found"}
			table.Header("Namespace", "Path", "Modified")
			for _, v := range list {
				table.Row(v.Namespace, v.Path, output.Date(time.Unix(0, v.ModifyTime)))
			}
			return out.Table(w, list, table)
		},
	}
	flags.add(cmd)
	namespace := cmd.Flags().Lookup("namespace")
	namespace.Usage = strings.Replace(namespace.Usage, "of the variable", "of the variables"+allNamespaces, 1)
	base.AddOutput(cmd, &out)
	return cmd
}
