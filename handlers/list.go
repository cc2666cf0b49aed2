package handlers

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"taskapi/handlers/internal/filter"
)

// listQuery is what every list can be asked for, as Nomad's are, beside ?filter=: ?prefix=, ?per_page=, ?next_token=, ?reverse= and ?namespace=.
// Region and staleness are looked at for every request, and index and wait by request.snapshot.
type listQuery struct {
	prefix    string
	namespace string // empty, or allNamespaces, for every one
	perPage   int    // 0 for no bound
	nextToken string
	reverse   bool
}

// allNamespaces stands for every namespace.
const allNamespaces = "*"

// listOrder is how a list is sorted, and so what its tokens are made of: those of Nomad.
type listOrder int

const (
	byID          listOrder = iota // nodes, and lists with a prefix
	byNamespaceID                  // jobs, variables, services
	byCreateIndex                  // allocations, evaluations and deployments: by CreateIndex and ID, or with a prefix by ID
)

// listing says how values of one type are listed.
type listing[T any] struct {
	order     listOrder
	uuid      bool           // IDs are UUIDs, and prefixes their beginnings
	id        func(T) string // what a prefix is of
	namespace func(T) string // nil for what is in none
	created   func(T) uint64 // the CreateIndex; for byCreateIndex
	stub      func(T) any    // what the answer has of it; nil for the value itself
	matched   func(T) any    // what a filter is applied to; nil for the value itself
}

// list is one request for a list. Requests are checked before they wait.
type list[T any] struct {
	listing[T]
	listQuery
	request *request
	from    place          // where the page begins, when there is a token
	chosen  *filter.Filter // nil for none
}

// newList reads what the request asks of a list.
func newList[T any](r *request, of listing[T]) (*list[T], error) {
	query, err := r.values()
	if err != nil {
		return nil, err
	}
	l := &list[T]{listing: of, request: r, listQuery: listQuery{
		prefix: query.Get("prefix"), namespace: query.Get("namespace"), nextToken: query.Get("next_token"),
	}}
	if l.perPage, err = perPage(query); err != nil {
		return nil, err
	}
	if l.reverse, err = flag(query, "reverse", false); err != nil {
		return nil, err
	}
	if of.uuid {
		l.prefix = strings.ToLower(l.prefix)
		if err := checkPrefix(l.prefix); err != nil {
			return nil, err
		}
	}
	if l.prefix != "" && of.order == byCreateIndex {
		l.order = byID
	}
	if l.from, err = l.order.parse(l.nextToken); err != nil {
		return nil, err
	}
	if text := query.Get("filter"); text != "" {
		unlock, err := r.lockFilters()
		if err != nil {
			return nil, err
		}
		defer unlock()
		if l.chosen, err = filter.New(text); err != nil {
			return nil, invalid("failed to read filter expression: %v", err)
		}
	}
	return l, nil
}

// pageOf returns the page of values that a query asks for, and the token of what follows it: for where no agent is asked. Errors: *apierror.Error,
// those of ctx.
func pageOf[T any](ctx context.Context, query url.Values, of listing[T], values []T) (page []T, next string, err error) {
	asked := http.Request{URL: &url.URL{RawQuery: query.Encode()}}
	r := &request{Request: asked.WithContext(ctx), server: &socketServer{filtering: make(chan struct{}, 1)}}
	l, err := newList(r, of)
	if err != nil {
		return nil, "", err
	}
	page, next, err = l.page(values)
	return append([]T{}, page...), next, err // never null
}

// lockFilters waits until no other filter is read or applied on the socket, and returns what lets the next one: who sends many costly ones waits
// for them alone. Errors: those of the request's context.
func (r *request) lockFilters() (unlock func(), err error) {
	select {
	case r.server.filtering <- struct{}{}:
		return func() { <-r.server.filtering }, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func perPage(query url.Values) (int, error) {
	text := query.Get("per_page")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, invalid("per_page must be a whole number from 0, for all, to %d, not %s", math.MaxInt32, clip(text))
	}
	return int(n), nil
}

// answer returns the page of the values that the request asks for. index is that of the whole list, for blocking queries.
func (l *list[T]) answer(values []T, index uint64) (answer, error) {
	page, next, err := l.page(values)
	if err != nil {
		return answer{}, err
	}
	stubs := make([]any, len(page)) // never null
	for i, v := range page {
		stubs[i] = v
		if l.stub != nil {
			stubs[i] = l.stub(v)
		}
	}
	encoded, err := encode(stubs)
	return answer{body: encoded, index: index, nextToken: next}, err
}

// page returns the page of the values, and the token of what follows it.
func (l *list[T]) page(values []T) (page []T, next string, err error) {
	if l.chosen != nil {
		unlock, err := l.request.lockFilters()
		if err != nil {
			return nil, "", err
		}
		defer unlock()
	}
	sorted := slices.SortedFunc(slices.Values(values), func(a, b T) int { return l.compare(l.place(a), l.place(b)) })
	for _, v := range sorted {
		if !l.lists(v) {
			continue
		}
		matches, err := l.matches(v)
		switch {
		case err != nil:
			return nil, "", err
		case !matches:
		case l.perPage > 0 && len(page) == l.perPage:
			return page, l.order.token(l.place(v)), nil
		default:
			page = append(page, v)
		}
	}
	return page, "", nil
}

// lists reports whether a value is one that the query asks for, but for its filter.
func (l *list[T]) lists(v T) bool {
	switch {
	case !strings.HasPrefix(l.id(v), l.prefix):
		return false
	case l.nextToken != "" && l.compare(l.place(v), l.from) < 0:
		return false
	}
	return l.listing.namespace == nil || inQueriedNamespace(l.listQuery.namespace, l.listing.namespace(v))
}

func inQueriedNamespace(queried, namespace string) bool {
	return queried == "" || queried == allNamespaces || queried == namespace
}

// matches reports whether the filter selects a value.
func (l *list[T]) matches(v T) (bool, error) {
	if l.chosen == nil {
		return true, nil
	}
	var subject any = v
	if l.matched != nil {
		subject = l.matched(v)
	}
	return l.request.matches(l.chosen, subject)
}

// matches reports whether a filter selects a value. For a client that has gone it is not applied. Errors: Invalid; those of the request's context.
func (r *request) matches(chosen *filter.Filter, subject any) (bool, error) {
	if err := r.Context().Err(); err != nil {
		return false, err
	}
	matches, err := chosen.Matches(subject)
	if err != nil {
		return false, invalid("the filter can't be applied: %v", err)
	}
	return matches, nil
}

// place is where a value is in a list. What the list is not sorted by is empty.
type place struct {
	namespace string
	index     uint64
	id        string
}

func (of listing[T]) place(v T) place {
	p := place{id: of.id(v)}
	switch {
	case of.order == byNamespaceID && of.namespace != nil:
		p.namespace = of.namespace(v)
	case of.order == byCreateIndex:
		p.index = of.created(v)
	}
	return p
}

// compare returns which of two places comes first in the query's list.
func (q listQuery) compare(a, b place) int {
	order := cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.index, b.index), cmp.Compare(a.id, b.id))
	if q.reverse {
		return -order
	}
	return order
}

// token returns a place as X-Nomad-NextToken has it.
func (o listOrder) token(p place) string {
	switch o {
	case byNamespaceID:
		return p.namespace + "." + p.id
	case byCreateIndex:
		return fmt.Sprintf("%d.%s", p.index, p.id)
	}
	return p.id
}

// parse returns the place that a token names. It need not exist: a list goes on after what was removed.
func (o listOrder) parse(token string) (p place, err error) {
	if token == "" || o == byID {
		return place{id: token}, nil
	}
	first, id, found := strings.Cut(token, ".") // which no namespace has in its name
	p = place{namespace: first, id: id}
	if o == byCreateIndex {
		p.namespace = ""
		p.index, err = strconv.ParseUint(first, 10, 64)
	}
	if !found || err != nil {
		return p, invalid("next_token must be as X-Nomad-NextToken gave it, not %s", clip(token))
	}
	return p, nil
}

func checkPrefix(prefix string) error {
	if len(prefix) > uuidLength || strings.Trim(prefix, "0123456789abcdef-") != "" {
		return invalid("prefix must be the beginning of a UUID, at most %d hexadecimal digits and hyphens, not %s", uuidLength, clip(prefix))
	}
	return nil
}
