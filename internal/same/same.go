// Package same compares what a test wants with what it got. Only tests may import it.
package same

import (
	"fmt"

	"github.com/google/go-cmp/cmp"
)

// As reports an error of the test, with the difference, if it got something else than it wants. what says of what.
func As[T any](tb interface {
	Helper()
	Errorf(format string, args ...any)
}, want, got T, what ...any) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("%s -want +got:\n%s", fmt.Sprint(what...), diff)
	}
}
