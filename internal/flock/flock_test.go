package flock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/flock"
	"taskapi/internal/must"
)

func TestLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	open := func() *os.File {
		f := must.Get(os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600))(t)
		t.Cleanup(func() { f.Close() })
		return f
	}
	first, second, third := open(), open(), open()
	for i, step := range []struct {
		err, want error
	}{
		{flock.Lock(int(first.Fd()), unix.LOCK_SH, 0), nil},
		{flock.Lock(int(second.Fd()), unix.LOCK_SH, 0), nil},
		{flock.Lock(int(third.Fd()), unix.LOCK_EX, time.Millisecond), flock.ErrLocked},
		{errors.Join(first.Close(), second.Close(), flock.Lock(int(third.Fd()), unix.LOCK_EX, 0)), nil},
		{flock.Lock(int(open().Fd()), unix.LOCK_SH, 0), flock.ErrLocked},
		{flock.Lock(-1, unix.LOCK_EX, time.Hour), unix.EBADF},
	} {
		if !errors.Is(step.err, step.want) {
			t.Errorf("step %d: %v, want %v", i, step.err, step.want)
		}
	}
	fourth := open()
	waited := make(chan error, 1)
	go func() { waited <- flock.Lock(int(fourth.Fd()), unix.LOCK_EX, time.Minute) }()
	must.OK(t, third.Close())
	if err := <-waited; err != nil {
		t.Errorf("a lock that was given up: %v", err)
	}
}
