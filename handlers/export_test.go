package handlers

import "taskapi/auth"

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
