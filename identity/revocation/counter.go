package revocation

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"taskapi/internal/privatefile"
)

// counter is a number that grows with each change of the list. The processes that use a list share the page of memory
// that the number is in, so a look at it is no system call. It is one more than generationFile, not instead: a file
// system may share no memory, and nobody sees in the page that its file was removed.
type counter struct{ page []byte }

// openCounter returns the counter of a directory; nil if its file system shares no memory.
func openCounter(dir string) (*counter, error) {
	f, err := privatefile.Open(filepath.Join(dir, counterFile), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := os.Getpagesize()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("make room for the counter: %w", err)
	}
	page, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil // the file system shares no memory
	}
	return &counter{page}, nil
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

// bump adds one. The caller has the lock of the list.
func bump(dir string) error {
	f, err := privatefile.Open(filepath.Join(dir, counterFile), os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	var number [8]byte
	if _, err := f.ReadAt(number[:], 0); err != nil {
		return err
	}
	binary.NativeEndian.PutUint64(number[:], binary.NativeEndian.Uint64(number[:])+1)
	_, err = f.WriteAt(number[:], 0)
	return err
}

func (c *counter) close() error {
	if c == nil {
		return nil
	}
	return unix.Munmap(c.page)
}
