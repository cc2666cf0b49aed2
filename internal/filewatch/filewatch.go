// Package filewatch wakes those who wait for an open file or directory to change, with one inotify instance for all of
// them. It watches descriptors and never names, since a task could put another file in the place of a name. It promises
// only that nobody misses a change: a caller that is woken has to look for the change. Its goroutine lives while
// something is watched.
package filewatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"taskapi/internal/wake"
)

// The events that wake a caller: of a file, changes of its content, its links and its name; of a directory, changes of
// the names in it, the end of writing to a file in it, and its removal.
const (
	fileEvents = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF
	dirEvents  = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CLOSE_WRITE |
		unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
)

// Watcher watches any number of files. Its zero value watches none, and it must not be copied.
type Watcher struct {
	mu      sync.Mutex // guards the fields below, and those of watches
	inotify *os.File   // nil while nothing is watched
	fd      int        // of inotify, which os.File.Fd would make a blocking one
	done    chan struct{}
	watches map[int32]*watch
}

// watch is one inode.
type watch struct {
	number  int32
	waiting map[*Watch]struct{}
}

// Watch is one caller that waits; nil is one that nothing wakes.
type Watch struct {
	changed wake.Signal
	watcher *Watcher
	at      *watch
}

// File watches an open file. Errors: those of inotify: a user may have a bounded number of instances.
func (w *Watcher) File(f *os.File) (*Watch, error) { return w.add(f, fileEvents) }

// Dir watches an open directory.
func (w *Watcher) Dir(f *os.File) (*Watch, error) { return w.add(f, dirEvents) }

// DirAt watches a directory in whose place no task can put another. The kernel watches it until Close.
func (w *Watcher) DirAt(name string) (*Watch, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return w.Dir(f)
}

func (w *Watcher) add(f *os.File, events uint32) (*Watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inotify == nil {
		if err := w.openLocked(); err != nil {
			return nil, err
		}
	}
	// The link in /proc leads to the open file itself, whatever its name is by now.
	number, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), events|unix.IN_MASK_ADD)
	if err != nil {
		w.closeIfIdleLocked()
		return nil, fmt.Errorf("watch a file: %w", err)
	}
	at := w.watches[int32(number)]
	if at == nil {
		at = &watch{number: int32(number), waiting: map[*Watch]struct{}{}}
		w.watches[at.number] = at
	}
	one := &Watch{changed: wake.New(), watcher: w, at: at}
	at.waiting[one] = struct{}{}
	return one, nil
}

func (w *Watcher) openLocked() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch files: %w", err)
	}
	w.inotify, w.fd, w.done, w.watches = os.NewFile(uintptr(fd), "inotify"), fd, make(chan struct{}), map[int32]*watch{}
	go w.run(w.inotify, w.done)
	return nil
}

// closeIfIdleLocked ends the goroutine when nothing is watched. It does not wait, since the goroutine may wait for the
// lock.
func (w *Watcher) closeIfIdleLocked() (done <-chan struct{}) {
	if len(w.watches) > 0 || w.inotify == nil {
		return nil
	}
	done = w.done
	_ = w.inotify.Close()
	w.inotify, w.done, w.watches = nil, nil, nil
	return done
}

// Changed returns a channel that gets an element when something has changed since the last element was taken. Of a nil
// Watch it never gets one.
func (o *Watch) Changed() <-chan struct{} {
	if o == nil {
		return nil
	}
	return o.changed
}

// Close ends the watch. When it was the last one, it waits for the watcher's goroutine.
func (o *Watch) Close() {
	if o == nil {
		return
	}
	w := o.watcher
	w.mu.Lock()
	delete(o.at.waiting, o)
	if len(o.at.waiting) == 0 && w.watches[o.at.number] == o.at {
		delete(w.watches, o.at.number)
		_, _ = unix.InotifyRmWatch(w.fd, uint32(o.at.number)) // gone already when the file is
	}
	done := w.closeIfIdleLocked()
	w.mu.Unlock()
	if done != nil {
		<-done
	}
}

// bufferSize holds some hundred events.
const bufferSize = 8 << 10

// run reads events until the instance is closed.
func (w *Watcher) run(inotify *os.File, done chan<- struct{}) {
	defer close(done)
	buf := make([]byte, bufferSize)
	for {
		n, err := inotify.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) { // this can't be; all callers look for themselves
				w.wake(inotify, nil)
			}
			return
		}
		w.wake(inotify, buf[:n])
	}
}

// wake wakes the callers that wait for the files of these events, or all callers when events were lost.
func (w *Watcher) wake(inotify *os.File, events []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inotify != inotify {
		return
	}
	for len(events) >= unix.SizeofInotifyEvent {
		number := int32(binary.NativeEndian.Uint32(events))
		mask, length := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		events = events[min(len(events), unix.SizeofInotifyEvent+int(length)):]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			for _, at := range w.watches {
				at.wake()
			}
			continue
		}
		if at := w.watches[number]; at != nil {
			at.wake()
		}
	}
}

func (a *watch) wake() {
	for one := range a.waiting {
		one.changed.Send()
	}
}
