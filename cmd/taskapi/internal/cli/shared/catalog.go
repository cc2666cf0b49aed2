package shared

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/stores"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/handlers/services"
)

// catalog is the registered services as a command reaches them. A namespace may be "*" but for remove.
type catalog interface {
	// list returns the names of services, by namespace, of the registrations that a filter selects.
	list(ctx context.Context, q *api.QueryOptions) ([]*api.ServiceRegistrationListStub, error)
	// get returns a page of the registrations of a service, and the token of the next.
	get(ctx context.Context, name string, q *api.QueryOptions) (page []*api.ServiceRegistration, next string, err error)
	// remove removes a registration.
	remove(ctx context.Context, namespace, name, id string) error
}

// withCatalog calls use with the services that the flags mean: those of the allocation that is named or, without one,
// of any that runs, or of the data directory.
func withCatalog(ctx context.Context, w base.Environment, flags serviceFlags, use func(catalog) error) error {
	if flags.alloc != "" {
		found, err := base.Find(ctx, w, flags.dataDir, []string{flags.alloc}, base.ToChange)
		if err != nil {
			return err
		}
		return use(askedCatalog{found})
	}
	f, err := base.NewFinder(w, flags.dataDir)
	if err != nil {
		return err
	}
	if err := f.Look(ctx, nil); err != nil {
		return err
	}
	for _, k := range f.Known {
		if !k.Running {
			continue
		}
		err := use(askedCatalog{k.Target})
		_, ended := errors.AsType[*base.EndedError](err)
		_, abandoned := errors.AsType[*base.AbandonedError](err)
		if !ended && !abandoned && !errors.Is(err, client.ErrNoAnswer) {
			return err
		} // none has answered, so that another one can be asked
	}
	store := stores.Shared(f.Places[0].Cluster())
	defer store.Close()
	return use(storedCatalog{f.Places[0], registry.New(store)})
}

// askedCatalog asks the taskapi that runs an allocation.
type askedCatalog struct{ target base.Target }

func (c askedCatalog) list(ctx context.Context, q *api.QueryOptions) (groups []*api.ServiceRegistrationListStub,
	err error) {
	err = c.target.Ask(ctx, func(_ *client.Client, sdk *api.Client) error {
		groups, _, err = sdk.Services().List(q.WithContext(ctx))
		return err
	})
	return groups, err
}

func (c askedCatalog) get(ctx context.Context, name string, q *api.QueryOptions) (page []*api.ServiceRegistration,
	next string, err error) {
	err = c.target.Ask(ctx, func(_ *client.Client, sdk *api.Client) error {
		found, meta, err := sdk.Services().Get(name, q.WithContext(ctx))
		if err == nil {
			page, next = found, meta.NextToken
		}
		return err
	})
	return page, next, err
}

func (c askedCatalog) remove(ctx context.Context, namespace, name, id string) error {
	return c.target.Ask(ctx, func(_ *client.Client, sdk *api.Client) error {
		_, err := sdk.Services().Delete(name, id, (&api.WriteOptions{Namespace: namespace}).WithContext(ctx))
		return err
	})
}

// storedCatalog reads the data directory.
type storedCatalog struct {
	layout   base.Layout
	registry *registry.Registry
}

func (c storedCatalog) list(ctx context.Context, q *api.QueryOptions) ([]*api.ServiceRegistrationListStub, error) {
	found, _, err := c.get(ctx, "", q)
	return services.ByName(found), err
}

func (c storedCatalog) get(ctx context.Context, name string, q *api.QueryOptions) (page []*api.ServiceRegistration,
	next string, err error) {
	found := []*api.ServiceRegistration{}
	namespace := q.Namespace
	if namespace == api.AllNamespacesNamespace {
		namespace = ""
	}
	// an allocation has run there: nothing is to be made
	if _, err := os.Stat(c.layout.Cluster()); !errors.Is(err, fs.ErrNotExist) {
		if found, _, err = c.registry.Services(ctx, namespace, name); err != nil {
			return nil, "", err
		}
	}
	page, next, err = services.Page(ctx, found, base.ValuesOf(q))
	return page, next, base.Usage(err)
}

func (c storedCatalog) remove(ctx context.Context, namespace, name, id string) error {
	if _, err := os.Stat(c.layout.Cluster()); errors.Is(err, fs.ErrNotExist) {
		return base.Usage(registry.ErrNotFound)
	}
	_, err := c.registry.Deregister(ctx, namespace, name, id)
	if errors.Is(err, registry.ErrNotFound) {
		return base.Usage(err)
	}
	return err
}
