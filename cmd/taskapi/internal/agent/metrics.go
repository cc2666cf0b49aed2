package agent

import (
	"context"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/socket"
)

// measure returns everything that this process counts, and what the allocation uses.
func (s *wiring) measure(ctx context.Context) []handlers.Metric {
	all := append(authMetrics(s.authStats()), socketMetrics(s.sockets.stats())...)
	all = append(all, s.allocMetrics(ctx)...)
	all = append(all, s.nodeMetrics(ctx)...)
	all = append(all, auditMetrics(s.audit)...)
	return append(all, hookMetrics(s.hookStats())...)
}

// hookMetrics names how the calls of hooks have gone.
func hookMetrics(stats []interfaces.HookStat) []handlers.Metric {
	var all []handlers.Metric
	for _, s := range stats {
		labels := []handlers.Label{{Name: "hook", Value: s.Hook}, {Name: "step", Value: s.Step}}
		all = append(all,
			handlers.Metric{Name: "taskapi_hook_calls_total", Labels: labels, Value: float64(s.Calls), Counter: true},
			handlers.Metric{Name: "taskapi_hook_errors_total", Labels: labels, Value: float64(s.Errors), Counter: true},
			handlers.Metric{Name: "taskapi_hook_seconds_total", Labels: labels, Value: s.Took.Seconds(), Counter: true})
	}
	return all
}

// authMetrics returns what the authenticator has counted, under the names of its metrics.
func authMetrics(s auth.Stats) []handlers.Metric {
	counter := func(name string, value float64, labels ...handlers.Label) handlers.Metric {
		return handlers.Metric{Name: "taskapi_door_" + name, Labels: labels, Value: value, Counter: true}
	}
	all := []handlers.Metric{
		counter("cache_hits_total", float64(s.Hits)),
		counter("cache_misses_total", float64(s.Misses)),
		counter("cache_negative_hits_total", float64(s.NegativeHits)),
		counter("verifications_total", float64(s.Verified)),
		counter("verifications_shared_total", float64(s.Shared)),
		counter("verify_seconds_total", s.VerifyTime.Seconds()),
		counter("held_back_total", float64(s.Delayed)),
		{Name: "taskapi_door_cached_verdicts", Labels: []handlers.Label{{Name: "verdict", Value: "good"}}, Value: float64(s.Cached.Good)},
		{Name: "taskapi_door_cached_verdicts", Labels: []handlers.Label{{Name: "verdict", Value: "bad"}}, Value: float64(s.Cached.Bad)},
	}
	for _, r := range auth.Reasons() {
		all = append(all, counter("refused_total", float64(s.Refused[r]), handlers.Label{Name: "reason", Value: r.String()}))
	}
	return all
}

// auditMetrics names what the audit log has counted; nil is no log.
func auditMetrics(log *auth.AuditLog) []handlers.Metric {
	if log == nil {
		return nil
	}
	s := log.Stats()
	return []handlers.Metric{
		{Name: "taskapi_audit_suppressed_total", Value: float64(s.Suppressed), Counter: true},
		{Name: "taskapi_audit_lost_total", Value: float64(s.Lost), Counter: true},
	}
}

// socketMetrics names what the sockets have counted.
func socketMetrics(s socket.Stats) []handlers.Metric {
	return []handlers.Metric{
		{Name: "taskapi_socket_connections_accepted_total", Value: float64(s.Accepted), Counter: true},
		{Name: "taskapi_socket_connections_refused_total", Value: float64(s.Refused), Counter: true},
		{Name: "taskapi_socket_connections_unidentified_total", Value: float64(s.Unidentified), Counter: true},
		{Name: "taskapi_socket_connections_open", Value: float64(s.Open)},
	}
}
