package handlers

import (
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/events"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// NewRoute makes a route with a capability of the caller's choice.
func NewRoute(capability auth.Capability) route.Route {
	return route.Read("/v1/test", capability, route.Constant(nil), "Tests.")
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
func Routes() []route.Route { return table(Config{}) }

// AllRoutes returns the table with routes of the kinds that it has none of yet, each for callers with either of two
// capabilities.
func AllRoutes() []route.Route {
	return append(Routes(),
		route.Read("/v1/test/allocation/{alloc}/raw", auth.ReadLogs,
			func(_ context.Context, r *route.Request) (route.Answer, error) {
				alloc, err := route.Resource[Rawer](r, apierror.NoAllocOnClient)
				return route.Answer{ContentType: route.PlainType,
					Stream: func(ctx context.Context, out *route.StreamWriter) { alloc.Raw(ctx, out) }}, err
			}, "Tests.").Or(auth.VariablesWrite).Answering(route.Raw),
		route.New([]string{http.MethodGet}, "/v1/test/allocation/{alloc}/upgrade", auth.AllocExec,
			func(_ context.Context, r *route.Request) (route.Answer, error) {
				alloc, err := route.Resource[Upgrader](r, apierror.NoAllocOnClient)
				return route.Answer{Upgrade: func(ctx context.Context, w http.ResponseWriter) error {
					return alloc.Upgrade(ctx, w, r.Request)
				}}, err
			}, "Tests.").Or(auth.AllocLifecycle).Answering(route.Upgrade),
	)
}

// NewWithTestRoutes returns an API with the routes that AllRoutes adds.
func NewWithTestRoutes(config Config) *API {
	return newAPI(config, testRouter(), append(table(config), AllRoutes()[len(Routes()):]...))
}

var testRouter = sync.OnceValue(func() *route.Router { return route.NewRouter(AllRoutes()) })

// NewHeldFilters returns an API whose route /v1/test takes the turn of the socket's filters, until held is closed.
func NewHeldFilters(config Config, held <-chan struct{}) *API {
	rows := append(table(config), route.Read("/v1/test", auth.Authenticated,
		func(_ context.Context, r *route.Request) (route.Answer, error) {
			leave, err := r.TakeFilters()
			if err != nil {
				return route.Answer{}, err
			}
			defer leave()
			<-held
			return route.Respond(nil)
		}, "Tests."))
	return newAPI(config, route.NewRouter(rows), rows)
}

// AddNode adds an event of the node, which waits for the allocation's next version.
func AddNode(e *events.Log) {
	e.AnnounceNode(touching{}, &api.Allocation{}, &wire.Node{Node: &api.Node{ID: "node"}})
}

// touching finds an allocation that is about to have another version.
type touching struct{ route.Alloc }

func (t touching) Get(string) (route.Alloc, bool) { return t, true }
func (touching) Touch() bool                      { return true }
