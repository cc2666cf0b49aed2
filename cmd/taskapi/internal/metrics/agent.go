package metrics

import (
	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/socket"
)

// authMetrics are those of the authenticator.
var authMetrics = []metric[auth.Stats]{
	counter("taskapi_door_cache_hits_total", "good tokens found in the cache", func(s auth.Stats) uint64 { return s.Hits }),
	counter("taskapi_door_cache_negative_hits_total", "bad tokens found in the cache", func(s auth.Stats) uint64 { return s.NegativeHits }),
	counter("taskapi_door_cache_misses_total", "tokens found in neither cache", func(s auth.Stats) uint64 { return s.Misses }),
	{name: "taskapi_door_cached_verdicts", label: "verdict", doc: "tokens in the caches", values: func(s auth.Stats) []sample {
		return []sample{{"good", float64(s.Cached.Good)}, {"bad", float64(s.Cached.Bad)}}
	}},
	counter("taskapi_door_verifications_total", "verifications of tokens, good and bad", func(s auth.Stats) uint64 { return s.Verified }),
	counter("taskapi_door_verifications_shared_total", "requests that waited for the verification of another request",
		func(s auth.Stats) uint64 { return s.Shared }),
	counter("taskapi_door_verify_seconds_total", "time that verifications took", func(s auth.Stats) float64 { return s.VerifyTime.Seconds() }),
	{name: "taskapi_door_refused_total", counter: true, label: "reason", doc: "refused requests", values: func(s auth.Stats) (all []sample) {
		for _, r := range auth.Reasons() {
			all = append(all, sample{r.String(), float64(s.Refused[r])})
		}
		return all
	}},
	counter("taskapi_door_held_back_total", "delayed refusals", func(s auth.Stats) uint64 { return s.Delayed }),
}

// auditMetrics are those of the audit log.
var auditMetrics = []metric[auth.AuditStats]{
	counter("taskapi_audit_suppressed_total", "refusals without a line of their own, because there were many of their kind",
		func(s auth.AuditStats) uint64 { return s.Suppressed }),
	counter("taskapi_audit_lost_total", "lines that could not be written", func(s auth.AuditStats) uint64 { return s.Lost }),
}

// socketMetrics are those of all sockets together.
var socketMetrics = []metric[socket.Stats]{
	counter("taskapi_socket_connections_accepted_total", "accepted connections", func(s socket.Stats) uint64 { return s.Accepted }),
	counter("taskapi_socket_connections_refused_total", "connections above a limit", func(s socket.Stats) uint64 { return s.Refused }),
	counter("taskapi_socket_connections_unidentified_total", "connections whose peer's user could not be read",
		func(s socket.Stats) uint64 { return s.Unidentified }),
	gauge("taskapi_socket_connections_open", "open connections", func(s socket.Stats) int { return s.Open }),
}

// hookMetrics are those of one step of a hook.
var hookMetrics = []metric[interfaces.HookStat]{
	counter("taskapi_hook_calls_total", "calls of the hook", func(s interfaces.HookStat) uint64 { return s.Calls }),
	counter("taskapi_hook_errors_total", "calls that failed", func(s interfaces.HookStat) uint64 { return s.Errors }),
	counter("taskapi_hook_seconds_total", "time that the calls took", func(s interfaces.HookStat) float64 { return s.Took.Seconds() }),
}
