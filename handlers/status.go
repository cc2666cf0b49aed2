package handlers

import "context"

// statusLeader is GET /v1/status/leader.
func (a *API) statusLeader(context.Context, *request) (answer, error) { return respond(leaderAddress) }
