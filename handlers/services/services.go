// Package services has the routes of service registrations: of a namespace, of one service, of an allocation and of a
// job.
package services

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
)

// Registry is the registrations of services of all allocations, also of other processes: a *registry.Registry.
type Registry interface {
	Services(ctx context.Context, namespace, name string) ([]*api.ServiceRegistration, uint64, error)
	Wait(ctx context.Context, namespace, name string, index uint64) error
	Deregister(ctx context.Context, namespace, name, id string) (uint64, error)
}

type handlers struct{ registered Registry }

// Routes returns the rows of services. Without a registry, they are NoRoute.
func Routes(registered Registry) []route.Route {
	h := &handlers{registered}
	rows := []route.Route{
		route.Read("/v1/services", auth.Authenticated, h.list,
			"Lists the services of the caller's namespace, with their tags."),
		route.Read("/v1/service/{name}", auth.Authenticated, h.get,
			"Lists the registrations of a service; choose=N|KEY for N of them."),
		route.Remove("/v1/service/{name}/{id}", auth.OperatorOnly, h.remove, "Removes a registration of any allocation."),
		route.Read("/v1/allocation/{alloc}/services", auth.ReadJob, route.OnAlloc(apierror.NoAllocation, h.ofAllocation),
			"Lists the services that an allocation has registered."),
		route.Read("/v1/job/{job}/services", auth.ReadJob, h.ofJob,
			"Lists the services that the job's allocations have registered."),
	}
	for i := range rows {
		rows[i] = rows[i].Given(registered != nil, apierror.NoRoute)
	}
	return rows
}

// serviceNamespace returns the namespace whose services a request is about, empty for all. A task gets its own,
// whatever it asks for. The operator, to whom all of the machine's allocations belong, gets the one that the query
// names.
func serviceNamespace(r *route.Request) string {
	own := r.Principal.Claims.Namespace
	if !r.Principal.Operator() {
		return own
	}
	queried := r.Query().Get("namespace")
	if queried == route.AllNamespaces {
		return ""
	}
	return cmp.Or(queried, own)
}

// registrations returns the registrations in the request's namespace with a name, or all for an empty name. When the
// query has an index, it first waits for a change.
func (h *handlers) registrations(
	ctx context.Context, r *route.Request, name string,
) ([]*api.ServiceRegistration, uint64, error) {
	namespace := serviceNamespace(r)
	err := r.AwaitChange(ctx, 0, func(ctx context.Context, index uint64) error {
		return h.registered.Wait(ctx, namespace, name, index)
	})
	if err != nil {
		return nil, 0, err
	}
	if err := r.EnterMaking(ctx); err != nil { // a machine may have thousands
		return nil, 0, err
	}
	return h.registered.Services(ctx, namespace, name)
}

var listing = list.Listing[*api.ServiceRegistration]{
	Order:     list.ByNamespaceID,
	ID:        func(s *api.ServiceRegistration) string { return s.ID },
	Namespace: func(s *api.ServiceRegistration) string { return s.Namespace },
}

// namedService is the registrations in a namespace with one name.
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

func groupByName(all []*api.ServiceRegistration) []*namedService {
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

// list answers GET /v1/services: the names of services, with the tags of their registrations, by namespace. A prefix is
// one of the name. A filter selects registrations, as for GET /v1/service/:name, and a service is listed with the
// registrations that it selects.
func (h *handlers) list(ctx context.Context, r *route.Request) (route.Answer, error) {
	l, err := list.New(r, list.Listing[*namedService]{
		Order:     list.ByNamespaceID,
		ID:        func(s *namedService) string { return s.name },
		Namespace: func(s *namedService) string { return s.namespace },
	})
	if err != nil {
		return route.Answer{}, err
	}
	all, index, err := h.registrations(ctx, r, "")
	if err != nil {
		return route.Answer{}, err
	}
	if all, err = list.SelectFrom(l, all); err != nil {
		return route.Answer{}, err
	}
	page, next, err := l.Page(groupByName(all))
	if err != nil {
		return route.Answer{}, err
	}
	result, err := route.Shared(grouped(page), index)
	result.NextToken = next
	return result, err
}

// ByName returns the services of registrations, which are ordered by namespace and name, as GET /v1/services answers.
// It is for commands that run without an agent.
func ByName(all []*api.ServiceRegistration) []*api.ServiceRegistrationListStub {
	return grouped(groupByName(all))
}

// grouped returns services, which are ordered by namespace, as an answer lists them.
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

// get answers GET /v1/service/:name: the registrations of a service, an empty list when nobody has registered it.
// choose=N|KEY selects N of a page.
func (h *handlers) get(ctx context.Context, r *route.Request) (route.Answer, error) {
	l, err := list.New(r, listing)
	if err != nil {
		return route.Answer{}, err
	}
	most, key, err := choiceOf(r.Query().Get("choose"))
	if err != nil {
		return route.Answer{}, err
	}
	all, index, err := h.registrations(ctx, r, r.Param("name"))
	if err != nil {
		return route.Answer{}, err
	}
	page, next, err := l.Page(all)
	if err != nil {
		return route.Answer{}, err
	}
	if key != "" {
		page = registry.Choose(page, most, key)
	}
	result, err := route.Shared(append([]*api.ServiceRegistration{}, page...), index) // never null
	result.NextToken = next
	return result, err
}

// choiceOf reads ?choose=N|KEY, for registry.Choose; the key is empty without it.
func choiceOf(text string) (most int, key string, err error) {
	if text == "" {
		return 0, "", nil
	}
	number, key, _ := strings.Cut(text, "|")
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || key == "" {
		const right = "failed to choose services: Parameter for choose must be in form '<number>|<key>', not %s"
		return 0, "", route.Invalid(right, route.Clip(text))
	}
	return int(n), key, nil
}

func (h *handlers) remove(ctx context.Context, r *route.Request) (route.Answer, error) {
	namespace := serviceNamespace(r)
	if namespace == "" {
		return route.Answer{}, route.Invalid("namespace must name one: " +
			"a registration is removed from one namespace at a time")
	}
	index, err := h.registered.Deregister(ctx, namespace, r.Param("name"), r.Param("id"))
	if err != nil {
		return route.Answer{}, err
	}
	return route.Answer{Body: route.NewBody(nil, route.JSONType), Index: index, Shared: true}, nil
}

func (h *handlers) ofAllocation(ctx context.Context, r *route.Request, _ route.Alloc) (route.Answer, error) {
	return h.except(ctx, r, func(s *api.ServiceRegistration) bool {
		return s.AllocID != r.Principal.Claims.AllocationID
	})
}

// ofJob answers GET /v1/job/:job/services: those of all allocations of the job, in the caller's namespace.
func (h *handlers) ofJob(ctx context.Context, r *route.Request) (route.Answer, error) {
	alloc, ok := r.Visible()
	if !ok || r.Param("job") != alloc.Snapshot().JobID {
		return route.Answer{}, apierror.New(apierror.NoJob)
	}
	return h.except(ctx, r, func(s *api.ServiceRegistration) bool { return s.JobID != r.Param("job") })
}

// except answers with the registrations for which other returns false.
func (h *handlers) except(
	ctx context.Context, r *route.Request, other func(*api.ServiceRegistration) bool,
) (route.Answer, error) {
	l, err := list.New(r, listing)
	if err != nil {
		return route.Answer{}, err
	}
	all, index, err := h.registrations(ctx, r, "")
	if err != nil {
		return route.Answer{}, err
	}
	found, err := l.Answer(slices.DeleteFunc(slices.Clone(all), other), index)
	found.Shared = true
	return found, err
}
