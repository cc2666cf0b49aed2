// Package search has the routes that find IDs and names among what the caller may see.
package search

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// Variables lists the variables of all namespaces, without their items.
type Variables interface {
	List(ctx context.Context, namespace, prefix string, concerns variables.Concerns) (
		[]*api.VariableMetadata, uint64, error,
	)
}

// Config has the objects that a search looks in.
type Config struct {
	Evaluations *evaluations.Store
	Deployments func(r *route.Request) []*api.Deployment // returns those of the caller's allocation
	Variables   Variables                                // nil for none
	Machine     *Machine                                 // nil for a socket of one allocation
	NodeID      string
	NodeName    string
}

// Machine has the objects of all allocations of a machine.
type Machine struct {
	Allocations func(context.Context) ([]*api.Allocation, error)
	Evaluations func(namespace string) []*api.Evaluation
}

type handlers struct{ Config }

// Routes returns the rows of searches.
func Routes(c Config) []route.Route {
	h := &handlers{c}
	return []route.Route{
		route.Ask("/v1/search", auth.Authenticated, route.Decoded(false, h.search),
			"Finds objects visible to the caller by the beginning of their ID."),
		route.Ask("/v1/search/fuzzy", auth.Authenticated, route.Decoded(false, h.fuzzySearch),
			"Finds objects visible to the caller by a part of their name."),
	}
}

// The bounds of a search, as in Nomad.
const (
	maxPrefixMatches = 20
	maxFuzzyMatches  = 100
	minFuzzyText     = 2 // bytes
)

// The contexts of a search. Those that this package has no objects of are always empty.
var (
	// searched are those of a caller who may read the job.
	searched = []contexts.Context{
		contexts.Allocs, contexts.Jobs, contexts.Evals, contexts.Namespaces, contexts.Deployments, contexts.ScalingPolicies,
	}
	// machines take node:read.
	machines = []contexts.Context{
		contexts.Nodes, contexts.NodePools, contexts.Plugins, contexts.Volumes, contexts.HostVolumes,
	}
	// enterprise are the contexts of Nomad Enterprise.
	enterprise = []contexts.Context{contexts.Quotas, contexts.Recommendations}
	// prefixed are the contexts whose IDs a fuzzy search finds by their beginning. Its answer has them even without a
	// match.
	prefixed = []contexts.Context{
		contexts.Evals, contexts.Deployments, contexts.ScalingPolicies, contexts.Volumes, contexts.HostVolumes,
	}
)

// contextsOf returns the contexts in which the caller's search looks. An empty context stands for all. As in Nomad, a
// search of all leaves out those that the caller must not search, and a search of one of them is refused.
func (h *handlers) contextsOf(r *route.Request, wanted contexts.Context) ([]contexts.Context, error) {
	var all []contexts.Context
	readJob := r.Principal.Capabilities.Has(auth.ReadJob)
	if readJob {
		all = append(all, searched...)
	}
	if r.Principal.Capabilities.Has(auth.NodeRead) {
		all = append(all, machines...)
	}
	if h.Variables != nil && r.Principal.SearchesVariables() {
		all = append(all, contexts.Variables)
	}
	switch {
	case wanted == contexts.All || wanted == "":
		return all, nil
	case slices.Contains(all, wanted):
		return []contexts.Context{wanted}, nil
	case !readJob:
		return nil, r.Need(auth.ReadJob)
	}
	known := slices.Concat(searched, machines, enterprise, []contexts.Context{contexts.Variables})
	if slices.Contains(known, wanted) {
		return nil, nil
	}
	names := slices.Sorted(slices.Values(append(known, contexts.All)))
	return nil, route.Invalid("context must be one of %q, not %s", names, route.Clip(string(wanted)))
}

type wireSearch[T any] struct {
	Matches     map[contexts.Context][]T
	Truncations map[contexts.Context]bool
	wire.Meta
}

func newWireSearch[T any](in []contexts.Context, index uint64) *wireSearch[T] {
	meta := wire.Meta{Index: index, KnownLeader: true}
	s := &wireSearch[T]{map[contexts.Context][]T{}, map[contexts.Context]bool{}, meta}
	for _, c := range in {
		s.Truncations[c] = false
	}
	return s
}

// put adds the matches of a context, null for none.
func (s *wireSearch[T]) put(in contexts.Context, found []T, most int) {
	s.Matches[in] = found[:min(len(found), most)]
	if len(found) > most {
		s.Truncations[in] = true
	}
}

// search answers PUT /v1/search: the IDs that begin with a prefix, of the objects visible to the caller.
func (h *handlers) search(ctx context.Context, r *route.Request, want *api.SearchRequest) (route.Answer, error) {
	in, from, err := h.searchIn(ctx, r, want.Context, want.Namespace)
	if err != nil {
		return route.Answer{}, err
	}
	response := newWireSearch[string](in, from.index)
	for _, c := range in {
		all, err := h.objects(ctx, r, from, c, paths{want.Namespace, want.Prefix, ""})
		if err != nil {
			return route.Answer{}, err
		}
		var found []string
		for _, one := range all {
			anyCase := c != contexts.Jobs && c != contexts.Variables
			if strings.HasPrefix(one.ID, want.Prefix) || anyCase && strings.HasPrefix(one.ID, strings.ToLower(want.Prefix)) {
				found = append(found, one.ID)
			}
		}
		slices.Sort(found)
		response.put(c, found, maxPrefixMatches)
	}
	return route.Indexed(response, from.index)
}

// scope is what a search looks in.
type scope struct {
	all   []*api.Allocation // that the caller may see
	in    []*api.Allocation // those in the namespace that is searched
	index uint64

	namespace string // that is searched
}

// searchIn returns the contexts that a search looks in, and the allocations.
func (h *handlers) searchIn(
	ctx context.Context, r *route.Request, wanted contexts.Context, namespace string,
) ([]contexts.Context, scope, error) {
	in, err := h.contextsOf(r, wanted)
	if err != nil {
		return nil, scope{}, err
	}
	current, err := r.WithJob(ctx)
	if err != nil {
		return nil, scope{}, err
	}
	from := scope{all: []*api.Allocation{current}, index: current.ModifyIndex}
	if h.Machine != nil {
		if from.all, err = h.Machine.Allocations(ctx); err != nil {
			return nil, scope{}, err
		}
	}
	namespace = cmp.Or(r.Query().Get("namespace"), namespace)
	from.namespace = namespace
	slices.SortFunc(from.all, func(a, b *api.Allocation) int { // the newest one's version of a job is searched
		return cmp.Or(cmp.Compare(b.CreateTime, a.CreateTime), cmp.Compare(a.ID, b.ID))
	})
	from.in = slices.DeleteFunc(slices.Clone(from.all), func(alloc *api.Allocation) bool {
		return alloc.Job == nil || !route.InNamespace(namespace, alloc.Namespace)
	})
	if len(from.in) == 0 {
		in = slices.DeleteFunc(slices.Clone(in), func(c contexts.Context) bool {
			return slices.Contains(ofNamespace, c)
		})
	}
	return in, from, nil
}

// ofNamespace are the contexts in which there is something in the namespaces of jobs alone.
var ofNamespace = []contexts.Context{contexts.Allocs, contexts.Jobs, contexts.Evals, contexts.Deployments}

// matches returns what a function returns of allocations, each once.
func matches(all []*api.Allocation, of func(*api.Allocation) string) (found []api.FuzzyMatch) {
	seen := map[string]bool{"": true}
	for _, alloc := range all {
		if id := of(alloc); !seen[id] {
			seen[id] = true
			found = append(found, api.FuzzyMatch{ID: id})
		}
	}
	return found
}

// paths selects variables. Their paths begin with the prefix and contain the text, ignoring case; the text is in lower
// case. The store reads no other variables.
type paths struct{ namespace, prefix, text string }

// objects returns the objects of a context that the caller may see, by their IDs; of variables only those at the paths.
func (h *handlers) objects(
	ctx context.Context, r *route.Request, from scope, in contexts.Context, at paths,
) (found []api.FuzzyMatch, err error) {
	switch in {
	case contexts.Allocs:
		return matches(from.in, func(alloc *api.Allocation) string { return alloc.ID }), nil
	case contexts.Jobs:
		return matches(from.in, func(alloc *api.Allocation) string { return alloc.JobID }), nil
	case contexts.Namespaces:
		return matches(from.all, func(alloc *api.Allocation) string { return alloc.Namespace }), nil
	case contexts.Nodes:
		return []api.FuzzyMatch{{ID: h.NodeID}}, nil
	case contexts.NodePools:
		return []api.FuzzyMatch{{ID: wire.NodePool}}, nil
	case contexts.Deployments:
		if h.Machine != nil {
			return matches(from.in, func(alloc *api.Allocation) string { return alloc.DeploymentID }), nil
		}
		for _, d := range h.Deployments(r) {
			found = append(found, api.FuzzyMatch{ID: d.ID})
		}
	case contexts.Evals:
		if h.Machine == nil {
			for _, e := range h.Evaluations.All(from.all[0]) {
				found = append(found, api.FuzzyMatch{ID: e.ID})
			}
			return found, nil
		}
		for _, e := range h.Machine.Evaluations(from.namespace) {
			found = append(found, api.FuzzyMatch{ID: e.ID})
		}
		return append(found, matches(from.in, func(alloc *api.Allocation) string { return alloc.EvalID })...), nil
	case contexts.Variables:
		namespace := cmp.Or(r.Query().Get("namespace"), at.namespace, api.DefaultNamespace)
		list, _, err := h.Variables.List(ctx, namespace, at.prefix, func(namespace, path string) bool {
			return strings.Contains(strings.ToLower(path), at.text) &&
				r.Principal.MayVariable(namespace, path, auth.VariableList)
		})
		if err != nil {
			return nil, fmt.Errorf("search variables: %w", err)
		}
		for _, v := range list {
			found = append(found, api.FuzzyMatch{ID: v.Path, Scope: []string{v.Namespace, v.Path}})
		}
	}
	return found, nil
}

// fuzzySearch answers PUT /v1/search/fuzzy: the objects visible to the caller whose names contain the text, ignoring
// case. Of the caller's job, these are also groups, tasks, services and commands.
func (h *handlers) fuzzySearch(
	ctx context.Context, r *route.Request, want *api.FuzzySearchRequest,
) (route.Answer, error) {
	if n := len(want.Text); n < minFuzzyText {
		return route.Answer{}, apierror.New(apierror.FuzzyTooShort, minFuzzyText, n)
	}
	in, from, err := h.searchIn(ctx, r, want.Context, want.Namespace)
	if err != nil {
		return route.Answer{}, err
	}
	text := strings.ToLower(want.Text)
	at := func(match api.FuzzyMatch) int { return strings.Index(strings.ToLower(match.ID), text) }
	response := newWireSearch[api.FuzzyMatch](in, from.index)
	found := map[contexts.Context][]api.FuzzyMatch{}
	for _, c := range in {
		if slices.Contains(prefixed, c) {
			response.Matches[c] = []api.FuzzyMatch{}
		}
		all, err := h.named(ctx, r, from, c, paths{want.Namespace, "", text})
		if err != nil {
			return route.Answer{}, err
		}
		for name, matches := range all {
			for _, match := range matches {
				if at(match) >= 0 {
					found[name] = append(found[name], match)
				}
			}
		}
	}
	for c, matches := range found {
		slices.SortFunc(matches, func(x, y api.FuzzyMatch) int {
			return cmp.Or(cmp.Compare(at(x), at(y)), cmp.Compare(len(x.ID), len(y.ID)), cmp.Compare(x.ID, y.ID),
				slices.Compare(x.Scope, y.Scope))
		})
		response.put(c, matches, maxFuzzyMatches)
	}
	return route.Indexed(response, from.index)
}

// named returns the objects of a context that the caller may see, by their names if they have any. Each is under the
// context that the answer shows it in: a job's parts have contexts of their own.
func (h *handlers) named(
	ctx context.Context, r *route.Request, from scope, in contexts.Context, at paths,
) (map[contexts.Context][]api.FuzzyMatch, error) {
	named := map[contexts.Context][]api.FuzzyMatch{}
	switch in {
	case contexts.Allocs:
		for _, alloc := range from.in {
			named[in] = append(named[in], api.FuzzyMatch{ID: alloc.Name, Scope: []string{alloc.Namespace, alloc.ID}})
		}
		return named, nil
	case contexts.Nodes:
		return map[contexts.Context][]api.FuzzyMatch{in: {{ID: h.NodeName, Scope: []string{h.NodeID}}}}, nil
	case contexts.Jobs:
		seen := map[api.NamespacedID]bool{}
		for _, alloc := range from.in {
			id := api.NamespacedID{Namespace: alloc.Namespace, ID: alloc.JobID}
			if seen[id] {
				continue
			}
			seen[id] = true
			for c, parts := range partsOf(alloc) {
				named[c] = append(named[c], parts...)
			}
		}
		return named, nil
	}
	found, err := h.objects(ctx, r, from, in, at)
	return map[contexts.Context][]api.FuzzyMatch{in: found}, err
}

// partsOf returns an allocation's job, and its groups, tasks, services and commands.
func partsOf(current *api.Allocation) map[contexts.Context][]api.FuzzyMatch {
	found := map[contexts.Context][]api.FuzzyMatch{}
	put := func(in contexts.Context, name string, scope ...string) {
		if name != "" {
			found[in] = append(found[in], api.FuzzyMatch{ID: name, Scope: scope})
		}
	}
	job := []string{current.Namespace, current.JobID}
	put(contexts.Jobs, ptr.Deref(current.Job.Name), job...)
	for _, group := range current.Job.TaskGroups {
		name := ptr.Deref(group.Name)
		put(contexts.Groups, name, job...)
		inGroup := append(slices.Clone(job), name)
		for _, service := range group.Services {
			put(contexts.Services, service.Name, inGroup...)
		}
		for _, task := range group.Tasks {
			put(contexts.Tasks, task.Name, inGroup...)
			inTask := append(slices.Clone(inGroup), task.Name)
			for _, service := range task.Services {
				put(contexts.Services, service.Name, inTask...)
			}
			if command, ok := task.Config["command"].(string); ok {
				put(contexts.Commands, command, inTask...)
			}
		}
	}
	return found
}
