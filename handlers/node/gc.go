package node

import (
	"context"

	"taskapi/handlers/internal/route"
	"taskapi/handlers/scrape"
)

// metrics answers GET /v1/metrics: JSON in Nomad's shape, or with ?format=prometheus the text that Prometheus reads.
func (h *handlers) metrics(ctx context.Context, r *route.Request) (route.Answer, error) {
	content, contentType, err := scrape.Encode(ctx, h.Metrics, r.Query().Get("format"))
	return route.Answer{Body: route.NewBody(content, []string{contentType})}, err
}

// clientGC answers PUT and GET /v1/client/gc: the allocation is removed if it has ended. As in Nomad, one that runs is
// left alone, and there is no body.
func (h *handlers) clientGC(ctx context.Context, r *route.Request) (route.Answer, error) {
	if err := h.checkNodeID(r.Query().Get("node_id")); err != nil {
		return route.Answer{}, err
	}
	return route.Answer{Body: route.NewBody(nil, route.JSONType)}, r.Collect(ctx)
}

// systemGC answers PUT /v1/system/gc. It forgets the evaluations that are kept for clients. A directory of an
// allocation that has ended is removed by taskapi gc, which alone knows of other allocations.
func (h *handlers) systemGC(context.Context, *route.Request) (route.Answer, error) {
	h.ForgetEvaluations()
	return route.Respond(nil)
}
