package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"taskapi/auth"
	"taskapi/internal/safedir"
)

// AuditShared changes something that allocations share, such as their key ring, and writes a line about it into each
// audit log that their settings name. change returns words that are added to command in the line. If a required log
// can't be written, the change is not made. For every other log that can't be written, warn gets a sentence. Errors:
// those of a required log, and change's.
func AuditShared(all []Settings, warn func(string), command string, change func() (made string, err error)) error {
	record := auth.NewCommandRecord(command)
	logs := map[string]*auth.AuditLog{}
	seen := map[string]bool{}
	for _, s := range all {
		if s.AuditLog == "" || seen[s.AuditLog] && !s.AuditRequired {
			continue
		}
		log, err := OpenAudit(s, slog.New(slog.DiscardHandler))
		if err == nil {
			defer log.Close()
			if err = log.Begin(record); err != nil {
				err = fmt.Errorf("audit log %s: %w", s.AuditLog, log.Stats().Last)
			}
		}
		switch {
		case err != nil && s.AuditRequired:
			return errors.New(err.Error() + "; nothing was changed, since an allocation runs with audit.required: " +
				"see that the log can be written, or stop that allocation")
		case err != nil:
			warn(err.Error() + ": it gets no line about this")
		default:
			logs[s.AuditLog] = log
		}
		seen[s.AuditLog] = true
	}
	made, err := change()
	record = auth.NewCommandRecord(command + made)
	record.Outcome = auth.Done
	if err != nil {
		record.Outcome = auth.Failed
	}
	for path, log := range logs {
		if log.Audit(record); log.Stats().Last != nil {
			warn(fmt.Sprintf("audit log %s: %v: it has no line about this", path, log.Stats().Last))
		}
	}
	return err
}

// OpenAudit opens the audit log that the settings name; nil for none.
func OpenAudit(o Settings, logger *slog.Logger) (*auth.AuditLog, error) {
	if o.AuditLog == "" {
		return nil, nil
	}
	log, err := auth.NewAuditLog(auth.AuditConfig{
		Open: func() (io.WriteCloser, error) {
			file, err := safedir.OpenFile(o.AuditLog, auth.OpenAuditFile)
			return auditFile{file, o.AuditLog}, err
		},
		Required: o.AuditRequired,
		Logger:   logger,
	})
	if err != nil {
		return nil, invalid(fmt.Errorf("audit log %s: %w", o.AuditLog, UnwrapPath(err)))
	}
	return log, nil
}

// AuditorOf returns the log as an Auditor, which is nil without a log.
func AuditorOf(log *auth.AuditLog) auth.Auditor {
	if log == nil {
		return nil
	}
	return log
}

// auditFile is the file of an audit log.
type auditFile struct {
	*os.File
	path string
}

// Moved reports whether the file is no longer at its path, as after a rotation.
func (f auditFile) Moved() bool {
	there, err := os.Stat(f.path)
	open, _ := f.Stat()
	return err != nil || !os.SameFile(there, open)
}
