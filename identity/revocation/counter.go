package revocation

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"taskapi/internal/privatefile"
)

// counter is a number that changes with each change of the list. The processes that use a list share the page of memory
// with the number, so reading it is no system call. It does not replace generationFile: a file system may share no
// memory, and the page does not show that its file was removed.
type counter struct {
	file *os.File
	page []byte
}

// openCounter returns the counter of a directory. It is nil, and the generation shows each change instead, if the file
// system shares no memory or is full, or if something else is in the counter's place.
func openCounter(dir string) *counter {
	f, err := privatefile.Open(filepath.Join(dir, counterFile), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil
	}
	info, err := f.Stat()
	if err == nil && info.Size() < numberBytes {
		err = change(f)
	}
	if err == nil {
		var page []byte
		if page, err = unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED); err == nil {
			return &counter{f, page}
		}
	}
	f.Close()
	return nil
}

// load returns the number. It can't be read without shared memory, and after somebody has cut the file off.
func (c *counter) load() (n uint64, ok bool) {
	if c == nil {
		return 0, false
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // otherwise SIGBUS ends the process
	defer func() { ok = recover() == nil }()
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(c.page)))), true
}

// removed reports whether the file is no longer in its directory, so that other processes count in another one.
func (c *counter) removed() bool {
	var st unix.Stat_t
	return c != nil && unix.Fstat(int(c.file.Fd()), &st) == nil && st.Nlink == 0
}

// count has every process see that the list has changed.
func count(dir string) error {
	f, err := privatefile.Open(filepath.Join(dir, counterFile), os.O_RDWR)
	if err != nil {
		return err
	}
	return errors.Join(change(f), f.Close())
}

const numberBytes = 8

// change writes a number that differs from all earlier ones, so that nobody mistakes it for a number that they have
// seen, whatever has happened to the file meanwhile.
func change(f *os.File) error {
	_, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, rand.Uint64()), 0)
	return err
}

func (c *counter) close() error {
	if c == nil {
		return nil
	}
	return errors.Join(unix.Munmap(c.page), c.file.Close())
}
