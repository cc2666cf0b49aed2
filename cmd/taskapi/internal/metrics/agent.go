package metrics

import (
	"runtime"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/socket"
)

// ofAuth returns the metrics of the authenticator.
func ofAuth(s auth.Stats) []metric {
	refused := metric{
		name: "taskapi_door_refused_total", doc: "refused requests, by reason", counter: true, label: "reason",
	}
	for _, r := range auth.Reasons() {
		refused.values = append(refused.values, value{r.String(), float64(s.Refused[r])})
	}
	return []metric{
		counter("taskapi_door_cache_hits_total", "good tokens found in the cache", s.Hits),
		counter("taskapi_door_cache_negative_hits_total", "bad tokens found in the cache", s.NegativeHits),
		counter("taskapi_door_cache_misses_total", "tokens found in neither cache", s.Misses),
		{name: "taskapi_door_cached_verdicts", doc: "tokens in the caches", label: "verdict",
			values: []value{{"good", float64(s.Cached.Good)}, {"bad", float64(s.Cached.Bad)}}},
		counter("taskapi_door_verifications_total", "verifications of tokens, good and bad", s.Verified),
		counter("taskapi_door_verifications_shared_total", "requests that shared the verification of another", s.Shared),
		counter("taskapi_door_verify_seconds_total", "time that verifications took", s.VerifyTime.Seconds()),
		refused,
		counter("taskapi_door_held_back_total", "refusals that were delayed", s.Delayed),
	}
}

// ofAudit returns the metrics of the audit log.
func ofAudit(s auth.AuditStats) []metric {
	return []metric{
		counter("taskapi_audit_suppressed_total",
			"refusals without a line in the audit log, because there were too many of their kind", s.Suppressed),
		counter("taskapi_audit_lost_total", "lines of the audit log that could not be written", s.Lost),
	}
}

// ofSockets returns the metrics of all sockets together.
func ofSockets(s socket.Stats) []metric {
	return []metric{
		counter("taskapi_socket_connections_accepted_total", "accepted connections of all sockets", s.Accepted),
		counter("taskapi_socket_connections_refused_total", "connections refused because of a limit", s.Refused),
		counter("taskapi_socket_connections_unidentified_total",
			"connections refused because the kernel did not name the peer", s.Unidentified),
		gauge("taskapi_socket_connections_open", "open connections of all sockets", s.Open),
	}
}

// ofHook returns the metrics of one step of a hook.
func ofHook(s interfaces.HookStat) []metric {
	return []metric{
		counter("taskapi_hook_calls_total", "calls of the hook", s.Calls),
		counter("taskapi_hook_errors_total", "calls of the hook that failed", s.Errors),
		counter("taskapi_hook_seconds_total", "time that calls of the hook took", s.Took.Seconds()),
	}
}

// ofRuntime returns the metrics of the Go runtime.
func ofRuntime() []metric {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return []metric{
		gauge("taskapi_runtime_goroutines", "goroutines of the agent", runtime.NumGoroutine()),
		gauge("taskapi_runtime_heap_bytes", "bytes on the heap", memory.HeapAlloc),
		gauge("taskapi_runtime_sys_bytes", "bytes that the runtime has from the system", memory.Sys),
		counter("taskapi_runtime_gc_total", "runs of the garbage collector", uint64(memory.NumGC)),
	}
}
