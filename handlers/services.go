package handlers

import (
	"cmp"
	"context"
	"net/url"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/filter"
)

// Services are the registrations of services of all allocations, those of other processes included: a *registry.Registry.
type Services interface {
	Services(ctx context.Context, namespace, name string) ([]*api.ServiceRegistration, uint64, error)
	Wait(ctx context.Context, namespace, name string, index uint64) error
	Deregister(ctx context.Context, namespace, name, id string) (uint64, error)
}

// serviceNamespace returns the namespace whose services a request is about, empty for all: a task's own, whatever it asks for, and for the
// operator, to whom all of the machine's allocations belong, the one that is named, too.
func (r *request) serviceNamespace() (string, error) {
	own := r.Principal.Claims.Namespace
	if !r.Principal.Operator() {
		return own, nil
	}
	query, err := r.values()
	if err != nil {
		return "", err
	}
	switch queried := query.Get("namespace"); queried {
	case allNamespaces:
		return "", nil
	default:
		return cmp.Or(queried, own), nil
	}
}

// registrations returns those of a namespace with a name, or all for an empty one, as they are, or once they have changed when the query
// has an index.
func (a *API) registrations(ctx context.Context, r *request, name string) ([]*api.ServiceRegistration, uint64, error) {
	if a.config.Services == nil {
		return nil, 0, apierror.New(apierror.NoRoute)
	}
	namespace, err := r.serviceNamespace()
	if err != nil {
		return nil, 0, err
	}
	err = r.awaitShared(ctx, 0, func(ctx context.Context, index uint64) error {
		return a.config.Services.Wait(ctx, namespace, name, index)
	})
	if err != nil {
		return nil, 0, err
	}
	if err := r.enterMaking(ctx); err != nil { // a machine may have thousands
		return nil, 0, err
	}
	return a.config.Services.Services(ctx, namespace, name)
}

// newRegistrationList returns a request for a list of registrations.
func newRegistrationList(r *request) (*list[*api.ServiceRegistration], error) {
	return newList(r, registrationListing)
}

var registrationListing = listing[*api.ServiceRegistration]{
	order:     byNamespaceID,
	id:        func(s *api.ServiceRegistration) string { return s.ID },
	namespace: func(s *api.ServiceRegistration) string { return s.Namespace },
}

// ServicesPage returns the page of registrations that filter, per_page and next_token ask for, and the token of what follows it, as
// GET /v1/service/:name answers them: for where no agent is asked. Errors: *apierror.Error, those of ctx.
func ServicesPage(ctx context.Context, all []*api.ServiceRegistration, query url.Values) (page []*api.ServiceRegistration, next string, err error) {
	return pageOf(ctx, query, registrationListing, all)
}

// selected returns the registrations that a filter selects, all for none.
func (r *request) selected(chosen *filter.Filter, all []*api.ServiceRegistration) (found []*api.ServiceRegistration, err error) {
	if chosen == nil {
		return all, nil
	}
	unlock, err := r.lockFilters()
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, registration := range all {
		matches, err := r.matches(chosen, registration)
		if err != nil {
			return nil, err
		}
		if matches {
			found = append(found, registration)
		}
	}
	return found, nil
}

// namedService are the registrations in a namespace with one name.
type namedService struct {
	namespace, name string
	instances       []*api.ServiceRegistration
}

// stub returns the service as a list of services has it, with the tags of all of its registrations.
func (s *namedService) stub() *api.ServiceRegistrationStub {
	tags := []string{}
	for _, instance := range s.instances {
		tags = append(tags, instance.Tags...)
	}
	slices.Sort(tags)
	return &api.ServiceRegistrationStub{ServiceName: s.name, Tags: slices.Compact(tags)}
}

// byName returns the services that registrations are of.
func byName(all []*api.ServiceRegistration) []*namedService {
	type place struct{ namespace, name string }
	found := map[place]*namedService{}
	var services []*namedService
	for _, instance := range all {
		at := place{instance.Namespace, instance.ServiceName}
		if found[at] == nil {
			found[at] = &namedService{namespace: at.namespace, name: at.name}
			services = append(services, found[at])
		}
		found[at].instances = append(found[at].instances, instance)
	}
	return services
}

// serviceList answers GET /v1/services: the names of services, with the tags of their registrations, by namespace. A prefix is one of the name,
// and a filter, as for GET /v1/service/:name, selects registrations: a service is listed with those that it selects.
func (a *API) serviceList(ctx context.Context, r *request) (answer, error) {
	list, err := newList(r, listing[*namedService]{
		order:     byNamespaceID,
		id:        func(s *namedService) string { return s.name },
		namespace: func(s *namedService) string { return s.namespace },
	})
	if err != nil {
		return answer{}, err
	}
	instances := list.chosen
	list.chosen = nil // services are not what it selects
	all, index, err := a.registrations(ctx, r, "")
	if err != nil {
		return answer{}, err
	}
	if all, err = r.selected(instances, all); err != nil {
		return answer{}, err
	}
	page, next, err := list.page(byName(all))
	if err != nil {
		return answer{}, err
	}
	encoded, err := encode(grouped(page))
	return answer{body: encoded, index: index, shared: true, nextToken: next}, err
}

// ServicesByName returns the services that registrations, ordered by namespace and name, are of, as GET /v1/services answers them: for where no
// agent is asked.
func ServicesByName(all []*api.ServiceRegistration) []*api.ServiceRegistrationListStub {
	return grouped(byName(all))
}

// grouped returns services, ordered by namespace, as a list has them.
func grouped(services []*namedService) []*api.ServiceRegistrationListStub {
	groups := []*api.ServiceRegistrationListStub{} // never null
	for _, service := range services {
		if n := len(groups); n == 0 || groups[n-1].Namespace != service.namespace {
			groups = append(groups, &api.ServiceRegistrationListStub{Namespace: service.namespace})
		}
		last := groups[len(groups)-1]
		last.Services = append(last.Services, service.stub())
	}
	return groups
}

// serviceGet answers GET /v1/service/:name: the registrations of a service, none for one that nobody has registered. choose=N|KEY selects N of
// a page.
func (a *API) serviceGet(ctx context.Context, r *request) (answer, error) {
	list, err := newRegistrationList(r)
	if err != nil {
		return answer{}, err
	}
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	choose, err := choiceOf(query.Get("choose"))
	if err != nil {
		return answer{}, err
	}
	all, index, err := a.registrations(ctx, r, r.param("name"))
	if err != nil {
		return answer{}, err
	}
	page, next, err := list.page(all)
	if err != nil {
		return answer{}, err
	}
	if choose != nil {
		page = choose.from(page)
	}
	encoded, err := encode(append([]*api.ServiceRegistration{}, page...)) // never null
	return answer{body: encoded, index: index, shared: true, nextToken: next}, err
}

// serviceDelete answers DELETE /v1/service/:name/:id.
func (a *API) serviceDelete(ctx context.Context, r *request) (answer, error) {
	if a.config.Services == nil {
		return answer{}, apierror.New(apierror.NoRoute)
	}
	namespace, err := r.serviceNamespace()
	if err != nil {
		return answer{}, err
	}
	if namespace == "" {
		return answer{}, invalid("namespace must name one: a registration is removed from one namespace at a time")
	}
	index, err := a.config.Services.Deregister(ctx, namespace, r.param("name"), r.param("id"))
	if err != nil {
		return answer{}, err
	}
	return answer{body: newBody(nil, jsonType), index: index, shared: true}, nil
}

// allocationServices answers GET /v1/allocation/:id/services.
func (a *API) allocationServices(ctx context.Context, r *request) (answer, error) {
	if _, err := r.alloc(apierror.NoAllocation); err != nil {
		return answer{}, err
	}
	return a.servicesOf(ctx, r, func(s *api.ServiceRegistration) bool { return s.AllocID == r.Principal.Claims.AllocationID })
}

// jobServices answers GET /v1/job/:job/services: those of all allocations of the job, in the caller's namespace.
func (a *API) jobServices(ctx context.Context, r *request) (answer, error) {
	if r.param("job") != r.Principal.Claims.JobID {
		return answer{}, apierror.New(apierror.NoJob)
	}
	return a.servicesOf(ctx, r, func(s *api.ServiceRegistration) bool { return s.JobID == r.Principal.Claims.JobID })
}

// servicesOf answers with the registrations for which wanted returns true.
func (a *API) servicesOf(ctx context.Context, r *request, wanted func(*api.ServiceRegistration) bool) (answer, error) {
	list, err := newRegistrationList(r)
	if err != nil {
		return answer{}, err
	}
	all, index, err := a.registrations(ctx, r, "")
	if err != nil {
		return answer{}, err
	}
	found, err := list.answer(slices.DeleteFunc(slices.Clone(all), func(s *api.ServiceRegistration) bool { return !wanted(s) }), index)
	found.shared = true
	return found, err
}
