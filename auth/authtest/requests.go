package authtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"taskapi/auth"
	"taskapi/internal/slice"
)

// maxRecords bounds what a Server remembers of requests.
const maxRecords = 100_000

type requests struct {
	mu       sync.Mutex // guards the fields below
	records  []auth.Record
	expected int // how many of them Expect has compared
}

var _ auth.Auditor = (*requests)(nil)

// Audit keeps a record.
func (r *requests) Audit(record auth.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.records) < maxRecords {
		r.records = append(r.records, record)
	}
}

// Begin lets every change pass.
func (r *requests) Begin(auth.Record) error { return nil }

// Requests returns the records of the requests so far, in order: who sent what, with which status, and why it was
// refused. The record of a request is there when the client has its answer, that of a stream when it begins. At most
// 100,000 are kept.
func (s *Server) Requests() []auth.Record {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	return slices.Clone(s.record.records)
}

// Requests returns the records of the requests over the task's socket.
func (t *Task) Requests() []auth.Record {
	others := func(r auth.Record) bool { return r.Alloc != t.alloc.id || r.Task != t.name }
	return slices.DeleteFunc(t.server.Requests(), others)
}

// Refusals returns the reasons for which requests were refused so far, in order.
func (s *Server) Refusals() []string {
	var reasons []string
	for _, r := range s.Requests() {
		if r.Outcome == auth.Denied {
			reasons = append(reasons, r.Reason)
		}
	}
	return reasons
}

// Expect fails the test unless the requests since the last Expect were these. Each is "METHOD PATH STATUS", followed by
// the reason of a refusal, or by "fault": "GET /v1/allocations 403 expired". An allocation's ID in a path is {alloc}.
func (s *Server) Expect(want ...string) {
	s.tb.Helper()
	s.record.mu.Lock()
	got := slice.Map(s.record.records[s.record.expected:], line)
	s.record.expected = len(s.record.records)
	s.record.mu.Unlock()
	if !slices.Equal(got, want) {
		const next = "\n\t"
		s.tb.Errorf("authtest: the server was asked for\n\t%s\nwant\n\t%s", strings.Join(got, next), strings.Join(want, next))
	}
}

func line(r auth.Record) string {
	path := strings.ReplaceAll(r.Path, r.Alloc, "{alloc}")
	return strings.TrimSpace(fmt.Sprintf("%s %s %d %s", r.Method, path, r.Status, r.Reason))
}
