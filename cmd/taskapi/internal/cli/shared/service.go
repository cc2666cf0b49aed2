package shared

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/handlers/services"
)

// allNamespaces is the value of a list's --namespace for all namespaces.
const allNamespaces = `, "*" for all`

// onServices completes a command about the services of a namespace. namespaces says which values of --namespace beside
// one name takes.
func onServices(w base.Environment, namespaces string, cmd *cobra.Command,
	do func(ctx context.Context, c catalog, namespace string, args []string) error,
) *cobra.Command {
	var dataDir, named string
	base.AddDataDir(cmd, &dataDir)
	cmd.Flags().StringVar(&named, "namespace", "",
		"`NAMESPACE` of the services"+namespaces+" (default $NOMAD_NAMESPACE, else "+api.DefaultNamespace+")")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		namespace := namespaceOr(named, w)
		if namespace == api.AllNamespacesNamespace && namespaces == "" {
			return base.Usagef("--namespace must name one: a registration is removed from one namespace at a time")
		}
		l, err := base.NewLayout(dataDir, w)
		if err != nil {
			return err
		}
		if !l.HasCluster() { // nothing is to be made
			return do(cmd.Context(), catalog{l, nil}, namespace, args)
		}
		store := l.OpenCluster()
		return errors.Join(do(cmd.Context(), catalog{l, registry.New(store)}, namespace, args), store.Close())
	}
	return cmd
}

// serviceHelp is the common help text of the commands about services.
const serviceHelp = `These are the services with provider = "nomad" of all allocations of the data directory.
No allocation has to run.`

// Service is the tree of taskapi service, after Nomad's.
func Service(w base.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "List registered services, and remove a registration",
		Long: `Lists the services that allocations have registered, and removes a registration.

` + serviceHelp,
		Example: `  taskapi service list
  taskapi service info web`,
	}
	cmd.AddCommand(serviceList(w), serviceInfo(w), base.IsDestructive(serviceDelete(w)))
	return cmd
}

func serviceList(w base.Environment) *cobra.Command {
	var out base.OutputFlags
	cmd := onServices(w, allNamespaces, &cobra.Command{
		Use:        "list [flags]",
		SuggestFor: []string{"ls"},
		Short:      "List the registered services with their tags",
		Long: `Lists the names of the registered services, each with the tags of all its registrations.

` + serviceHelp + `

--json prints what GET /v1/services answers. A template gets the same, a list of the SDK's
ServiceRegistrationListStub.`,
		Example: `  taskapi service list
  taskapi service list --namespace '*'
  taskapi service list -t '{{range .}}{{range .Services}}{{.ServiceName}}{{"\n"}}{{end}}{{end}}'`,
	}, func(ctx context.Context, c catalog, namespace string, _ []string) error {
		all, err := c.of(ctx, namespace)
		if err != nil {
			return err
		}
		groups := services.ByName(all)
		return out.Table(w, groups, servicesTable(w, groups))
	})
	base.AddOutput(cmd, &out)
	return cmd
}

func servicesTable(w base.Environment, groups []*api.ServiceRegistrationListStub) *output.Table {
	table := &output.Table{Colors: w.Colors(), None: "No service registrations found"}
	table.Header("Service Name", "Namespace", "Tags")
	for _, group := range groups {
		for _, service := range group.Services {
			table.Row(service.ServiceName, group.Namespace, tagsText(service.Tags))
		}
	}
	return table
}

func tagsText(tags []string) string { return "[" + strings.Join(tags, ",") + "]" }

func serviceInfo(w base.Environment) *cobra.Command {
	var out base.OutputFlags
	cmd := onServices(w, allNamespaces, &cobra.Command{
		Use:   "info [flags] SERVICE",
		Short: "Show who has registered a service, with their addresses",
		Long: `Shows the registrations of a service, with their addresses.

SERVICE is the service's name, or the beginning of one name only.

` + serviceHelp + `

--json prints what GET /v1/service/:name answers. A template gets the same, a list of the SDK's
ServiceRegistration.`,
		Example: `  taskapi service info web
  taskapi service info -t '{{range .}}{{.Address}}:{{.Port}}{{"\n"}}{{end}}' web`,
	}, func(ctx context.Context, c catalog, namespace string, args []string) error {
		found, err := registrationsOf(ctx, w, c, args[0], namespace)
		if err != nil {
			return err
		}
		slices.SortStableFunc(found, func(a, b *api.ServiceRegistration) int { return cmp.Compare(a.JobID, b.JobID) })
		table := &output.Table{Colors: w.Colors()}
		table.Header("Job ID", "Address", "Tags", "Alloc ID", "ID")
		for _, s := range found {
			table.Row(s.JobID, base.AddressOf(s), tagsText(s.Tags), output.ShortID(s.AllocID), s.ID)
		}
		return out.Table(w, found, table)
	})
	base.AddOutput(cmd, &out)
	return cmd
}

// registrationsOf returns the registrations of the service with a name, or of the only one whose name begins so.
func registrationsOf(ctx context.Context, w base.Environment, c catalog, name, namespace string) (
	[]*api.ServiceRegistration, error) {
	all, err := c.of(ctx, namespace)
	if err != nil {
		return nil, err
	}
	begun := slices.DeleteFunc(all, func(s *api.ServiceRegistration) bool {
		return !strings.HasPrefix(s.ServiceName, name)
	})
	names := map[string]bool{}
	for _, s := range begun {
		names[s.ServiceName] = true
	}
	switch {
	case names[name]:
		return slices.DeleteFunc(begun, func(s *api.ServiceRegistration) bool { return s.ServiceName != name }), nil
	case len(names) == 0:
		where := fmt.Sprintf("namespace %q", namespace)
		if namespace == api.AllNamespacesNamespace {
			where = "any namespace"
		}
		return nil, fmt.Errorf("no service %q is registered in %s; '%s' lists them", name, where,
			c.layout.Command("service list"))
	case len(names) > 1:
		table := servicesTable(w, services.ByName(begun))
		return nil, base.Usagef("%q is the beginning of %d services: give the name of one\n%s", name, len(names),
			strings.TrimSuffix(table.String(), "\n"))
	}
	return begun, nil
}

func serviceDelete(w base.Environment) *cobra.Command {
	return onServices(w, "", &cobra.Command{
		Use:        "delete [flags] SERVICE ID",
		SuggestFor: []string{"deregister", "remove", "rm"},
		Short:      "Remove one registration of a service",
		Long: `Removes one registration of a service, by the registration's ID.

'taskapi service info' shows the ID. Nothing happens to the allocation, which registers the service again with its
next restart or update. A registration ends by itself with its allocation.

` + serviceHelp,
		Example: `  taskapi service delete web _nomad-task-d0b25612-ae72-4863-9cc7-5980397c4dc0-group-web-web-http`,
	}, func(ctx context.Context, c catalog, namespace string, args []string) error {
		if err := c.remove(ctx, w, namespace, args[0], args[1]); err != nil {
			return fmt.Errorf("remove %s of service %q in namespace %q: %w; 'taskapi service info' shows the IDs",
				args[1], args[0], namespace, err)
		}
		return w.Printf("Successfully deleted service registration\n")
	})
}

// catalog holds the registered services of a data directory.
type catalog struct {
	layout   base.Layout
	registry *registry.Registry // nil where no allocation has ever run
}

// of returns the registrations of a namespace, or with "*" of all, ordered by namespace, name and ID.
func (c catalog) of(ctx context.Context, namespace string) ([]*api.ServiceRegistration, error) {
	if c.registry == nil {
		return nil, nil
	}
	if namespace == api.AllNamespacesNamespace {
		namespace = ""
	}
	all, _, err := c.registry.Services(ctx, namespace, "")
	slices.SortFunc(all, func(a, b *api.ServiceRegistration) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ServiceName, b.ServiceName),
			cmp.Compare(a.ID, b.ID))
	})
	return all, err
}

func (c catalog) remove(ctx context.Context, w base.Environment, namespace, name, id string) error {
	if c.registry == nil {
		return registry.ErrNotFound
	}
	command := fmt.Sprintf("service delete: %s of %s in namespace %s", id, name, namespace)
	err := c.layout.Audited(w, command, func() (string, error) {
		_, err := c.registry.Deregister(ctx, namespace, name, id)
		return "", err
	})
	return err
}
