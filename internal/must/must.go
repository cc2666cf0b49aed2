// Package must ends a test at an error that the test is not about. Only tests may import it.
package must

// TB is a part of testing.TB, which fixtures with a test in them have, too.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// OK ends the test if there is an error.
func OK(tb TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
