package jobdiff

import (
	"maps"
	"reflect"
)

// TableRow is a row of a table of fields, for tests that walk them.
type TableRow struct {
	Ignored bool
	Why     string
	ByTable bool
}

// FieldTables returns the tables of fields, by struct.
func FieldTables() map[reflect.Type]map[string]TableRow {
	rows := map[reflect.Type]map[string]TableRow{}
	for t, table := range tables() {
		rows[t] = map[string]TableRow{}
		for name, r := range table {
			rows[t][name] = TableRow{Ignored: r.verdict == isIgnored, Why: r.means, ByTable: r.table}
		}
	}
	return rows
}

// WithoutRow takes a row out of a table and returns what puts it back.
func WithoutRow(t reflect.Type, field string) (restore func()) {
	whole := tables()[t]
	tables()[t] = maps.Clone(whole)
	delete(tables()[t], field)
	return func() { tables()[t] = whole }
}
