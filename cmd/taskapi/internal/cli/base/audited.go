package base

import (
	"taskapi/cmd/taskapi/internal/agent"
)

// Audited changes something that the allocations of the data directory share, and records it in the audit logs of those
// that have not ended. See agent.AuditShared.
func (l Layout) Audited(w Environment, command string, change func() (made string, err error)) error {
	ids, err := l.IDs()
	if err != nil {
		return err
	}
	warn := func(text string) { w.Warnf("warning: %s", text) }
	var all []agent.Settings
	for _, id := range ids {
		kept, err := l.Remembered(id)
		if err == nil && kept.AuditLog == "" {
			continue
		}
		if saved, err := l.Peek(id); err == nil && (saved == nil || saved.Terminal) {
			continue
		}
		if err != nil {
			warn(err.Error() + "; if allocation " + id + " has an audit log, it gets no line of this")
			continue
		}
		all = append(all, kept)
	}
	return agent.AuditShared(all, warn, command, change)
}
