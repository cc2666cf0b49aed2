package handlers

import "context"

// statusLeader answers GET /v1/status/leader.
func (a *API) statusLeader(context.Context, *request) (answer, error) { return respond(leaderAddress) }

// statusPeers answers GET /v1/status/peers: this process is its own leader and has no other peer.
func (a *API) statusPeers(context.Context, *request) (answer, error) {
	return respond([]string{leaderAddress})
}

// regions answers GET /v1/regions.
func (a *API) regions(context.Context, *request) (answer, error) {
	return respond([]string{a.config.Agent.Region})
}

// reconcileSummaries answers PUT /v1/system/reconcile/summaries: a summary is made for each request, so none can be out of step.
func (a *API) reconcileSummaries(context.Context, *request) (answer, error) { return respond(nil) }
