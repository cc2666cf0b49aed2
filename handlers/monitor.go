package handlers

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// AgentLog is what the agent logs.
type AgentLog interface {
	// Follow returns the lines that are logged from now on, from the level up, as text or as JSON, until stop is called. A reader who is too slow
	// loses lines, never holds up the agent, and is told so in the lines.
	Follow(level slog.Level, asJSON bool) (lines <-chan []byte, stop func())
}

// monitorLevels are the levels by the names that Nomad has for them.
var monitorLevels = map[string]slog.Level{
	"": slog.LevelInfo, "trace": slog.LevelDebug - 4, "debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
	"error": slog.LevelError,
}

// monitor answers GET /v1/agent/monitor: what the agent logs from now on, as text with plain=true, else in frames. log_level chooses how
// much, and log_json=true has each line as JSON.
func (a *API) monitor(_ context.Context, r *request) (answer, error) {
	if a.config.Log == nil {
		return answer{}, apierror.New(apierror.NoRoute)
	}
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	level, known := monitorLevels[strings.ToLower(query.Get("log_level"))]
	if !known {
		return answer{}, invalid("Unknown log level: %s; there are trace, debug, info, warn and error", clip(query.Get("log_level")))
	}
	asJSON, err := flag(query, "log_json", false)
	if err != nil {
		return answer{}, err
	}
	plain, err := flag(query, "plain", false)
	if err != nil {
		return answer{}, err
	}
	if err := a.checkTarget(query); err != nil {
		return answer{}, err
	}
	result := answer{contentType: jsonType}
	if plain {
		result.contentType = plainType
	}
	result.stream = func(ctx context.Context, out *streamWriter) {
		lines, stop := a.config.Log.Follow(level, asJSON)
		defer stop()
		monitorTo(ctx, out, lines, plain)
	}
	return result, nil
}

// checkTarget returns an error for a request that is for another node or server than this agent, which is both.
func (a *API) checkTarget(query url.Values) error {
	node, server := query.Get("node_id"), query.Get("server_id")
	agent := &a.config.Agent
	switch {
	case node != "" && server != "":
		return invalid("Cannot target node and server simultaneously")
	case server != "" && server != "leader" && server != agent.NodeID && server != agent.member().Name:
		return apierror.New(apierror.NoServer, clip(server))
	}
	return a.checkNodeID(node)
}

// monitorTo writes the lines until ctx ends, with a heartbeat while there are none: as text that is nothing.
func monitorTo(ctx context.Context, out *streamWriter, lines <-chan []byte, plain bool) {
	beat := time.NewTicker(heartbeatEvery)
	defer beat.Stop()
	var err error
	if !plain {
		err = out.heartbeat(heartbeat) // the head leaves with it
	} else {
		_, err = out.Write(nil)
	}
	for err == nil {
		select {
		case line := <-lines:
			if !plain {
				if line, err = json.Marshal(api.StreamFrame{Data: line}); err != nil {
					return // bytes are always JSON
				}
			}
			_, err = out.Write(line)
		case <-beat.C:
			if !plain {
				err = out.heartbeat(heartbeat)
			}
		case <-ctx.Done():
			return
		}
	}
}
