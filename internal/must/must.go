// Package must has what a test needs before it comes to its subject: each function ends the test where that fails. Only
// tests may import it.
package must

import (
	"os"
	"syscall"
)

// TB is the part of testing.TB that rapid's tests, and fixtures with a test in them, have, too.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// failure is an error, or a pointer to one, of which nil is no error.
type failure interface {
	error
	comparable
}

// OK ends the test if there is an error.
func OK[E failure](tb TB, err E) {
	tb.Helper()
	var none E
	if err != none {
		tb.Fatal(err)
	}
}

// Get is for what a call returns beside an error: must.Get(os.Open(path))(t) is the file, and ends the test if there is
// an error.
func Get[T any, E failure](value T, err E) func(TB) T {
	return func(tb TB) T {
		tb.Helper()
		OK(tb, err)
		return value
	}
}

// Read returns the content of a file.
func Read(tb TB, path string) []byte {
	tb.Helper()
	return Get(os.ReadFile(path))(tb)
}

// Program writes a program that is executed next. No process is forked meanwhile: it would have the file open for
// writing until it executes another one, and the kernel executes no such file.
func Program(tb TB, path string, text []byte) {
	tb.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	OK(tb, os.WriteFile(path, text, 0o755))
}

// ShortDir returns a directory that every user may pass. It is removed at the end of the test. Its path leaves room for
// the name of a socket, as that of TempDir may not.
func ShortDir(tb interface {
	TB
	Cleanup(f func())
}) string {
	tb.Helper()
	dir := Get(os.MkdirTemp("", "t"))(tb)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) }) // processes may still write
	OK(tb, os.Chmod(dir, 0o711))
	return dir
}
