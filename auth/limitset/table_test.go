package limitset

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"taskapi/examples/doctest"
	"taskapi/ratelimit"
)

// TestDefault: every default is a good value, and every field of a Set is one limit's.
func TestDefault(t *testing.T) {
	fields := map[any]bool{}
	for _, l := range table {
		var s Set
		if err := l.put(&s, l.standard); err != nil {
			t.Errorf("the default of %s: %v", l.name, err)
		}
		for field, value := range reflect.ValueOf(&s).Elem().Fields() {
			if !value.IsZero() {
				fields[field.Name] = true
			}
		}
	}
	if want := reflect.TypeFor[Set]().NumField(); len(fields) != want || len(table) != want {
		t.Errorf("%d limits set %d fields of %d", len(table), len(fields), want)
	}
	if got := Default(); got.FailedLookups != (ratelimit.Rate{PerSecond: 10, Burst: 20}) || got.Requests != Off ||
		got.Connections != 256 {
		t.Errorf("the defaults are %+v", got)
	}
}

// TestLimitsAreDocumented holds docs/security.md to the table.
func TestLimitsAreDocumented(t *testing.T) {
	var want strings.Builder
	want.WriteString("| limit | default | of |\n|---|---|---|\n")
	for _, l := range table {
		fmt.Fprintf(&want, "| `%s` | `%s` | %s |\n", l.name, l.standard, l.doc)
	}
	doctest.Table(t, "../../docs/security.md", "auth/limitset", want.String())
}
