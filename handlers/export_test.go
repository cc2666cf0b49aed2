package handlers

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// NewRoute makes a route with a capability of the caller's choice.
func NewRoute(capability auth.Capability) Route {
	return read("/v1/test", capability, (&API{}).statusLeader, "Tests.")
}

// Raw and Upgrade are what the routes of WithTestRoutes need of an allocation.
type (
	Rawer interface {
		Raw(ctx context.Context, w io.Writer)
	}
	Upgrader interface {
		Upgrade(ctx context.Context, w http.ResponseWriter, r *http.Request) error
	}
)

// Routes returns the whole table, in the order of the resources.
func Routes() []Route { return new(API).table() }

// AllRoutes returns the table with routes of the kinds that it has none of yet, each for callers with either of two capabilities.
func AllRoutes() []Route {
	return append(Routes(),
		read("/v1/test/allocation/{alloc}/raw", auth.ReadLogs, func(_ context.Context, r *request) (answer, error) {
			alloc, err := resource[Rawer](r, apierror.NoAllocOnClient)
			return answer{contentType: plainType, stream: func(ctx context.Context, out *streamWriter) { alloc.Raw(ctx, out) }}, err
		}, "Tests.").or(auth.VariablesWrite).answering(Raw),
		read("/v1/test/allocation/{alloc}/upgrade", auth.AllocExec, func(_ context.Context, r *request) (answer, error) {
			alloc, err := resource[Upgrader](r, apierror.NoAllocOnClient)
			return answer{upgrade: func(ctx context.Context, w http.ResponseWriter) error { return alloc.Upgrade(ctx, w, r.Request) }}, err
		}, "Tests.").or(auth.AllocLifecycle).answering(Upgrade),
	)
}

// WithTestRoutes returns the API with the routes that AllRoutes adds.
func (a *API) WithTestRoutes() *API {
	a.router = newRouter(append(a.table(), AllRoutes()[len(a.table()):]...))
	return a
}

// Handler returns the API on one socket without a server around it, for requests from the peer.
func (a *API) Handler(owner auth.Owner, peer auth.Peer) http.Handler {
	life := context.Background()
	s := newSocketServer(a, owner, life, life)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &connection{peer: peer, watchdog: &watchdog{}, server: s}
		s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), connectionKey{}, c)))
	})
}

// AddNode adds an event of the node.
func AddNode(e *Events) { e.add(nodeNote(&wireNode{Node: &api.Node{ID: "node"}})) }

// Kept returns how many events there are.
func Kept(e *Events) int { return len(e.kept) }

// Ambiguous returns the number of the first head in a text that gives its length twice, 0 for none, when it comes in pieces.
func Ambiguous(pieces ...[]byte) int64 {
	var f framing
	for _, piece := range pieces {
		f.feed(piece)
	}
	return f.bad.Load()
}

// HoldPace keeps the pace of busy sockets from rising, and LoosenPace lets it.
func (a *API) HoldPace()   { a.holdPace(time.Now().Add(time.Hour)) }
func (a *API) LoosenPace() { a.holdPace(time.Time{}) }

func (a *API) holdPace(until time.Time) {
	a.pacer.mu.Lock()
	defer a.pacer.mu.Unlock()
	a.pacer.pace.hold = until
}

// PaceAfter returns the paces of busy sockets after each window in which so many requests came and so many ticks came late,
// starting at the least.
func PaceAfter(least float64, demand, late []int) []float64 {
	var rates []float64
	now := time.Unix(0, 0)
	p := pace{least: least, rate: least, since: now}
	for i := range demand {
		for tick := range int(paceWindow / paceTick) {
			now = now.Add(paceTick)
			p.begun += demand[i] * int(paceTick) / int(paceWindow)
			lateness := time.Duration(0)
			if tick < late[i] {
				lateness = 2 * paceLate
			}
			p = p.tick(now, lateness)
		}
		rates = append(rates, p.rate)
	}
	return rates
}

// ListOrder is how a list is sorted.
type ListOrder = listOrder

// The orders of lists.
const (
	ByID          = byID
	ByNamespaceID = byNamespaceID
	ByCreateIndex = byCreateIndex
)

// Page returns the IDs of the evaluations that a query gets, and the token of the next page.
func Page(ctx context.Context, query string, order listOrder, evals []*api.Evaluation) (ids []string, next string, err error) {
	return page(ctx, &socketServer{filtering: make(chan struct{}, 1)}, query, order, evals)
}

// PageBehindAnother does so while another filter of the socket is applied, without end.
func PageBehindAnother(ctx context.Context, query string, order listOrder, evals []*api.Evaluation) (ids []string, next string, err error) {
	return page(ctx, &socketServer{filtering: make(chan struct{})}, query, order, evals)
}

func page(ctx context.Context, s *socketServer, query string, order listOrder, evals []*api.Evaluation) (ids []string, next string, err error) {
	r := &request{Request: (&http.Request{URL: &url.URL{RawQuery: query}}).WithContext(ctx), server: s}
	l, err := newList(r, listing[*api.Evaluation]{
		order:     order,
		id:        func(e *api.Evaluation) string { return e.ID },
		namespace: func(e *api.Evaluation) string { return e.Namespace },
		created:   func(e *api.Evaluation) uint64 { return e.CreateIndex },
	})
	if err != nil {
		return nil, "", err
	}
	page, next, err := l.page(evals)
	for _, e := range page {
		ids = append(ids, e.ID)
	}
	return ids, next, err
}

// LatestUsage is latestUsage.
func LatestUsage(ctx context.Context, alloc Measured) (*api.AllocResourceUsage, error) {
	return latestUsage(ctx, alloc)
}
