package handlers

import (
	"context"
	"net/http"

	"taskapi/auth"
)

// Row is a row of the table, for tests that walk it.
type Row struct {
	Methods    []string
	Pattern    string
	Capability auth.Capability
}

// Rows is the whole table.
func (a *API) Rows() []Row {
	var rows []Row
	for _, r := range a.table() {
		rows = append(rows, Row{r.methods, r.pattern, r.capability})
	}
	return rows
}

// NewRow makes a row with a capability of the caller's choice.
func NewRow(capability auth.Capability) {
	row(read, "/v1/test", capability, (&API{}).statusLeader)
}

// Handler is the API on one socket without a server around it, for requests from the peer.
func (a *API) Handler(owner auth.Owner, peer auth.Peer) http.Handler {
	life := context.Background()
	s := &site{API: a, owner: owner, draining: life, open: life}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &connection{peer: peer, watchdog: &watchdog{}, site: s}
		s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), connectionKey{}, c)))
	})
}

// Kept is how many events there are.
func Kept(e *Events) int { return len(e.kept) }

// Ambiguous is the number of the first head in a text that gives its length twice, 0 for none, when it comes in pieces.
func Ambiguous(pieces ...[]byte) int64 {
	var f framing
	for _, piece := range pieces {
		f.feed(piece)
	}
	return f.bad.Load()
}
