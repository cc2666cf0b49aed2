package node

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
)

// AgentLog is the agent's log.
type AgentLog interface {
	// Follow returns the lines that are logged from now on, from the level up, as text or as JSON, until stop is
	// called. A slow reader loses lines, and one of the lines says so; the agent never waits for it.
	Follow(level slog.Level, asJSON bool) (lines <-chan []byte, stop func())
}

// monitorLevels are the levels by the names that Nomad has for them.
var monitorLevels = map[string]slog.Level{
	"": slog.LevelInfo, "trace": slog.LevelDebug - 4, "debug": slog.LevelDebug,
	"info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

// monitor answers GET /v1/agent/monitor: the lines that the agent logs from now on, as text with plain=true, else in
// frames. log_level chooses the least level, and log_json=true asks for JSON lines.
func (h *handlers) monitor(_ context.Context, r *route.Request) (route.Answer, error) {
	query := r.Query()
	level, known := monitorLevels[strings.ToLower(query.Get("log_level"))]
	if !known {
		return route.Answer{}, route.Invalid("Unknown log level: %s; there are trace, debug, info, warn and error",
			route.Clip(query.Get("log_level")))
	}
	asJSON, plain := r.Flag("log_json", false), r.Flag("plain", false)
	if err := h.checkTarget(query); err != nil {
		return route.Answer{}, err
	}
	result := route.Answer{ContentType: route.JSONType}
	if plain {
		result.ContentType = route.PlainType
	}
	result.Stream = func(ctx context.Context, out *route.StreamWriter) {
		lines, stop := h.Log.Follow(level, asJSON)
		defer stop()
		monitorTo(ctx, out, lines, plain)
	}
	return result, nil
}

// checkTarget returns an error for a request to another node or server than this agent, which is both.
func (h *handlers) checkTarget(query url.Values) error {
	node, server := query.Get("node_id"), query.Get("server_id")
	agent := &h.Agent
	switch {
	case node != "" && server != "":
		return route.Invalid("Cannot target node and server simultaneously")
	case server != "" && server != "leader" && server != agent.NodeID && server != agent.member().Name:
		return apierror.New(apierror.NoServer, route.Clip(server))
	}
	return h.checkNodeID(node)
}

// monitorTo writes the lines until ctx ends. While there are none it sends heartbeats, unless the stream is plain text.
func monitorTo(ctx context.Context, out *route.StreamWriter, lines <-chan []byte, plain bool) {
	beat := time.NewTicker(route.HeartbeatEvery)
	defer beat.Stop()
	var err error
	if !plain {
		err = out.Heartbeat() // the head leaves with it
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
				err = out.Heartbeat()
			}
		case <-ctx.Done():
			return
		}
	}
}
