// Package list answers requests for lists as Nomad does: sorted, filtered, and in pages, each with a token of the next.
package list

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"taskapi/handlers/internal/route"
)

// Order is how a list is sorted. The token of a page has the values that the list is sorted by, as in Nomad.
type Order int

const (
	ByID          Order = iota // nodes, and lists with a prefix
	ByNamespaceID              // jobs, variables, services
	ByCreateIndex              // allocations, evaluations and deployments: by CreateIndex and ID, or with a prefix by ID
)

// Listing says how values of one type are listed.
type Listing[T any] struct {
	Order     Order
	UUID      bool           // IDs are UUIDs, and prefixes their beginnings
	ID        func(T) string // begins with a prefix that is asked for
	Namespace func(T) string // nil for values without one
	Created   func(T) uint64 // the CreateIndex; for ByCreateIndex
	Stub      func(T) any    // returns the value to show; nil for the value itself
	Matched   func(T) any    // returns the value to filter; nil for the value itself
}

// List is one request for a list. Requests are checked before they wait.
type List[T any] struct {
	Listing[T]
	ctx     context.Context
	filters turn // to read or apply a filter

	// The parameters of every list besides a filter, as in Nomad.
	Prefix    string
	queried   string // the namespace; empty, or route.AllNamespaces, for every one
	perPage   int    // 0 for no bound
	nextToken string
	reverse   bool

	from   place   // where the page begins, when there is a token
	chosen *filter // nil for none
}

// turn waits for a request's turn, until leave.
type turn func() (leave func(), err error)

// New reads the request's parameters for a list. Request.Snapshot and Request.AwaitChange read index and wait. A caller
// that sends many costly filters on a socket delays nobody on other sockets.
func New[T any](r *route.Request, of Listing[T]) (*List[T], error) {
	return read(r.Context(), r.Query(), r.TakeFilters, of)
}

func read[T any](ctx context.Context, query url.Values, filters turn, of Listing[T]) (l *List[T], err error) {
	l = &List[T]{
		Listing: of, ctx: ctx, filters: filters,
		Prefix: query.Get("prefix"), queried: query.Get("namespace"), nextToken: query.Get("next_token"),
	}
	if text := query.Get("per_page"); text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return nil, route.Invalid("per_page must be a whole number from 0, for all, to %d, not %s",
				math.MaxInt32, route.Clip(text))
		}
		l.perPage = int(n)
	}
	if l.reverse, err = route.FlagOf(query, "reverse", false); err != nil {
		return nil, err
	}
	if of.UUID {
		l.Prefix = strings.ToLower(l.Prefix)
		if len(l.Prefix) > route.UUIDLength || strings.Trim(l.Prefix, "0123456789abcdef-") != "" {
			return nil, route.Invalid("prefix must be the beginning of a UUID, at most %d hexadecimal digits and hyphens, "+
				"not %s", route.UUIDLength, route.Clip(l.Prefix))
		}
	}
	if l.Prefix != "" && of.Order == ByCreateIndex {
		l.Order = ByID
	}
	if l.from, err = l.Order.parse(l.nextToken); err != nil {
		return nil, err
	}
	if text := query.Get("filter"); text != "" {
		leave, err := filters()
		if err != nil {
			return nil, err
		}
		defer leave()
		if l.chosen, err = newFilter(text); err != nil {
			return nil, route.Invalid("failed to read filter expression: %v", err)
		}
	}
	return l, nil
}

// Answer returns the page of the values that the request asks for. index is that of the whole list, for blocking
// queries.
func (l *List[T]) Answer(values []T, index uint64) (route.Answer, error) {
	page, next, err := l.Page(values)
	if err != nil {
		return route.Answer{}, err
	}
	stubs := make([]any, len(page)) // never null
	for i, v := range page {
		stubs[i] = v
		if l.Stub != nil {
			stubs[i] = l.Stub(v)
		}
	}
	result, err := route.Indexed(stubs, index)
	result.NextToken = next
	return result, err
}

// Page returns the page of the values, and the token of the next page.
func (l *List[T]) Page(values []T) (page []T, next string, err error) {
	if l.chosen != nil {
		leave, err := l.filters()
		if err != nil {
			return nil, "", err
		}
		defer leave()
	}
	sorted := slices.SortedFunc(slices.Values(values), func(a, b T) int { return l.compare(l.place(a), l.place(b)) })
	for _, v := range sorted {
		if !l.lists(v) {
			continue
		}
		var subject any = v
		if l.Matched != nil {
			subject = l.Matched(v)
		}
		matches, err := l.matches(subject)
		switch {
		case err != nil:
			return nil, "", err
		case !matches:
		case l.perPage > 0 && len(page) == l.perPage:
			return page, l.Order.token(l.place(v)), nil
		default:
			page = append(page, v)
		}
	}
	return page, "", nil
}

// lists reports whether the query selects a value, without its filter.
func (l *List[T]) lists(v T) bool {
	switch {
	case !strings.HasPrefix(l.ID(v), l.Prefix):
		return false
	case l.nextToken != "" && l.compare(l.place(v), l.from) < 0:
		return false
	}
	return l.Namespace == nil || route.InNamespace(l.queried, l.Namespace(v))
}

// matches reports whether the filter selects a value. It is not applied for a client that has gone. Errors: Invalid,
// the context's.
func (l *List[T]) matches(subject any) (bool, error) {
	if l.chosen == nil {
		return true, nil
	}
	if err := l.ctx.Err(); err != nil {
		return false, err
	}
	matches, err := l.chosen.matches(subject)
	if err != nil {
		return false, route.Invalid("the filter can't be applied: %v", err)
	}
	return matches, nil
}

// SelectFrom returns the values that the list's filter selects, and removes the filter from the list, whose elements
// are groups of such values.
func SelectFrom[T, V any](l *List[T], all []V) (found []V, err error) {
	if l.chosen == nil {
		return all, nil
	}
	leave, err := l.filters()
	if err != nil {
		return nil, err
	}
	defer leave()
	for _, v := range all {
		matches, err := l.matches(v)
		if err != nil {
			return nil, err
		}
		if matches {
			found = append(found, v)
		}
	}
	l.chosen = nil
	return found, nil
}

// place is a value's place in a list. Fields that the list is not sorted by are empty.
type place struct {
	namespace string
	index     uint64
	id        string
}

func (of Listing[T]) place(v T) place {
	p := place{id: of.ID(v)}
	switch {
	case of.Order == ByNamespaceID && of.Namespace != nil:
		p.namespace = of.Namespace(v)
	case of.Order == ByCreateIndex:
		p.index = of.Created(v)
	}
	return p
}

// compare returns which of two places comes first in the query's list.
func (l *List[T]) compare(a, b place) int {
	order := cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.index, b.index), cmp.Compare(a.id, b.id))
	if l.reverse {
		return -order
	}
	return order
}

// token returns a place as X-Nomad-NextToken has it.
func (o Order) token(p place) string {
	switch o {
	case ByNamespaceID:
		return p.namespace + "." + p.id
	case ByCreateIndex:
		return fmt.Sprintf("%d.%s", p.index, p.id)
	}
	return p.id
}

// parse returns the place that a token names. It need not exist: a list continues after a removed value.
func (o Order) parse(token string) (p place, err error) {
	if token == "" || o == ByID {
		return place{id: token}, nil
	}
	first, id, found := strings.Cut(token, ".") // which no namespace has in its name
	p = place{namespace: first, id: id}
	if o == ByCreateIndex {
		p.namespace = ""
		p.index, err = strconv.ParseUint(first, 10, 64)
	}
	if !found || err != nil {
		return p, route.Invalid("next_token must be as X-Nomad-NextToken gave it, not %s", route.Clip(token))
	}
	return p, nil
}
