package handlers

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// allocationGet answers GET /v1/allocation/:id.
func (a *API) allocationGet(ctx context.Context, r *request) (answer, error) {
	alloc, err := r.alloc(apierror.NoAlloc)
	if err != nil {
		return answer{}, err
	}
	current, err := r.snapshot(ctx, alloc)
	if err != nil {
		return answer{}, err
	}
	keyID := a.keyID()
	encoded, err := a.allocation.get(cacheKey{current.ID, current.ModifyIndex, keyID}, func() any {
		return wireAllocationOf(current, keyID)
	})
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// EncodeAllocation returns the allocation as GET /v1/allocation/:id?pretty answers it, without the signing key: for allocations whose
// agent has exited.
func EncodeAllocation(a *api.Allocation) ([]byte, error) {
	return json.MarshalIndent(wireAllocationOf(a, ""), "", prettyIndent)
}

func (a *API) keyID() string {
	if a.config.SigningKeyID == nil {
		return ""
	}
	return a.config.SigningKeyID()
}

// allocationList answers GET /v1/allocations: the caller's own, when it matches prefix and namespace. resources=true adds the
// resources, task_states=false leaves the task states out.
func (a *API) allocationList(ctx context.Context, r *request) (answer, error) {
	want, err := listQuery(r)
	if err != nil {
		return answer{}, err
	}
	alloc, ok := r.visible()
	if !ok {
		return respond([]any{})
	}
	current, err := r.snapshot(ctx, alloc)
	if err != nil {
		return answer{}, err
	}
	list := []*wireStub{}
	if want.matches(current) {
		list = append(list, wireStubOf(current, want.resources, want.taskStates))
	}
	encoded, err := encode(list)
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// listFilter is the query of a list.
type listFilter struct {
	prefix     string
	namespace  string
	resources  bool
	taskStates bool
}

// allNamespaces stands for every namespace.
const allNamespaces = "*"

func (l listFilter) matches(alloc *api.Allocation) bool {
	return inNamespace(alloc, l.namespace) && strings.HasPrefix(alloc.ID, l.prefix)
}

func listQuery(r *request) (want listFilter, err error) {
	query, err := r.values()
	if err != nil {
		return want, err
	}
	if query.Get("filter") != "" { // to ignore it would list too much
		return want, invalid("filter is not supported: the list holds one allocation at most")
	}
	want.namespace = query.Get("namespace")
	want.prefix = strings.ToLower(query.Get("prefix"))
	if len(want.prefix) > uuidLength || strings.Trim(want.prefix, "0123456789abcdef-") != "" {
		return want, invalid("prefix must be the beginning of a UUID, at most %d hexadecimal digits and hyphens, not %s",
			uuidLength, clip(want.prefix))
	}
	if want.resources, err = flag(query, "resources", false); err != nil {
		return want, err
	}
	want.taskStates, err = flag(query, "task_states", true)
	return want, err
}
