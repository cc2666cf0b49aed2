// Package same compares what a test wants with what it got. Only tests may import it.
package same

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"
)

// TB is the part of testing.TB that rapid's tests have, too.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// As reports an error of the test, with the difference, if it got something else than it wants. what says of what.
func As[T any](tb TB, want, got T, what ...any) {
	tb.Helper()
	if diff := gocmp.Diff(want, got); diff != "" {
		tb.Errorf("%s -want +got:\n%s", fmt.Sprint(what...), diff)
	}
}

// Error reports an error of the test if an error is not what it wants, by errors.Is; nil is none. what says of what.
func Error(tb TB, want, got error, what ...any) {
	tb.Helper()
	if !errors.Is(got, want) {
		tb.Errorf("%s: got %v, want %v", fmt.Sprint(what...), got, want)
	}
}

// Says reports an error of the test if there is no error that has these words, or if it is not what the test wants, by
// errors.Is; nil is any. what says of what.
func Says(tb TB, want error, words string, got error, what ...any) {
	tb.Helper()
	if got == nil || want != nil && !errors.Is(got, want) || !strings.Contains(got.Error(), words) {
		tb.Errorf("%s: got %v, want %v that says %q", fmt.Sprint(what...), got, cmp.Or(want, errAny), words)
	}
}

// Fails reports an error of the test if there is none. what says of what.
func Fails(tb TB, got error, what ...any) {
	tb.Helper()
	if got == nil {
		tb.Errorf("%s: there is no error", fmt.Sprint(what...))
	}
}

var errAny = errors.New("an error")

// Err is the error of a call that returns something beside it.
func Err[T any](_ T, err error) error { return err }

// Err2 is the error of a call that returns two things beside it.
func Err2[T, U any](_ T, _ U, err error) error { return err }
