package disk

import (
	"encoding/binary"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/boottime"
)

// The file named queue makes writers take turns at the lock: the one that has waited longest comes first, whichever
// process it is in. Each process has a place in the file, which holds the time at which the first of its writers began
// to wait, or 0, and a lock like those of leases, which ends with the process. The order serves fairness alone: when
// the file can't be read or written, it seems that nobody waits.
type queue struct {
	file    *os.File
	place   int    // this process's place, from 1; 0 before it has one
	since   uint64 // when its present writer began to wait
	ignored uint64 // when a process that has not taken its turn began to wait; it may be stopped

	first uint64 // when, at the last look, the first process in the queue had begun to wait
	seen  time.Time
}

const (
	places    = 64
	placeSize = 8
	// turnTimeout is how long the others wait for the process whose turn it is.
	turnTimeout = time.Second
)

// enter notes that this process waits, with a writer that began to wait at a time.
func (q *queue) enter(since uint64) {
	for i := 1; q.place == 0 && i <= places; i++ {
		if unix.FcntlFlock(q.file.Fd(), unix.F_OFD_SETLK, lockOf(uint64(i), unix.F_WRLCK)) == nil {
			q.place = i
		}
	}
	q.since, q.first = since, 0
	q.write(q.since)
}

// now returns the time by a clock that all processes of the machine have.
func now() uint64 { return uint64(boottime.Now()) }

// write writes when this process began to wait into its place; 0: it does not wait.
func (q *queue) write(since uint64) {
	if q.place > 0 {
		_, _ = q.file.WriteAt(binary.LittleEndian.AppendUint64(nil, since), int64(q.place-1)*placeSize)
	}
}

// ahead returns how many processes began to wait before since, and when the first of them did.
func (q *queue) ahead(since uint64) (count int, first uint64) {
	var all [places * placeSize]byte
	n, _ := q.file.ReadAt(all[:], 0)
	for i := 1; i*placeSize <= n; i++ {
		began := binary.LittleEndian.Uint64(all[(i-1)*placeSize:])
		if began == 0 || began >= since || began == q.ignored || i == q.place || !held(q.file, uint64(i)) {
			continue
		}
		if count++; count == 1 || began < first {
			first = began
		}
	}
	return count, first
}

// look returns how many processes come before this one. It leaves out one that does not take its turn in time.
func (q *queue) look() (ahead int) {
	ahead, first := q.ahead(q.since)
	if first != q.first {
		q.first, q.seen = first, time.Now()
	}
	if ahead > 0 && time.Since(q.seen) > turnTimeout {
		q.ignored = first
	}
	return ahead
}
