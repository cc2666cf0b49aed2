// Package hookmeter calls hooks and counts their calls, their failures and their time. It decides nothing: an error
// goes back to the caller.
package hookmeter

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"taskapi/allocrunner/interfaces"
)

// Meter counts the calls of one allocation's hooks. Its zero value has counted nothing. It is safe for concurrent use,
// and holds one entry for each hook and step, however many tasks there are.
type Meter struct {
	mu    sync.Mutex // guards stats
	stats map[key]interfaces.HookStat
}

type key struct{ hook, step string }

// Call calls a hook's step, counts it, and logs it at debug level with its duration and error.
func (m *Meter) Call(logger *slog.Logger, hook, step string, call func() error) error {
	began := time.Now()
	err := call()
	took := time.Since(began)
	logger.Debug("hook called", "hook", hook, "step", step, "took", took, "error", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stats == nil {
		m.stats = map[key]interfaces.HookStat{}
	}
	s := m.stats[key{hook, step}]
	s.Hook, s.Step, s.Calls, s.Took = hook, step, s.Calls+1, s.Took+took
	if err != nil {
		s.Errors++
	}
	m.stats[key{hook, step}] = s
	return err
}

// Stats returns the counts, ordered by hook and step.
func (m *Meter) Stats() []interfaces.HookStat {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.stats), func(a, b interfaces.HookStat) int {
		return cmp.Or(cmp.Compare(a.Hook, b.Hook), cmp.Compare(a.Step, b.Step))
	})
}
