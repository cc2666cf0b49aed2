// Package budget shares a number of bytes of memory among callers that make long answers or read long bodies. It never
// grants more than there is. One half is divided equally among the callers, so that nobody can keep another from an
// answer of modest length. The other half is common: of the callers that wait for it, the one that holds least of it
// comes first. The package only counts bytes, and allocates none of them.
package budget

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Budget counts the bytes of all shares. Its methods and those of its shares may be called from several goroutines.
type Budget struct {
	half int // of the bytes: the shares divide one half, and the other one is common

	mu      sync.Mutex // guards the fields below, and those of shares
	shares  int
	common  int // bytes of the common half that are held
	holds   map[*Hold]struct{}
	waiting []*waiter // in the order in which they came
}

// Share counts the bytes of one caller.
type Share struct {
	budget *Budget
	own    int // bytes of its part that are held
	common int // and of the common half
}

// Hold is a number of bytes that are held.
type Hold struct {
	share  *Share
	bytes  int
	common bool
	since  time.Time
}

type waiter struct {
	hold    *Hold
	granted chan struct{} // closed when the bytes are held
}

// New returns a budget of that many bytes.
func New(bytes int) *Budget { return &Budget{half: bytes / 2, holds: map[*Hold]struct{}{}} }

// Join returns another share, until Leave.
func (b *Budget) Join() *Share {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares++
	return &Share{budget: b}
}

// Leave ends a share of which nothing is held any more.
func (s *Share) Leave() {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares--
	b.grantLocked() // the others' parts have become larger
}

// Hold waits until that many bytes can be held, which Keep gives back; more than half of the budget counts as half.
// Errors: ctx's.
func (s *Share) Hold(ctx context.Context, bytes int) (*Hold, error) {
	b := s.budget
	h := &Hold{share: s, bytes: min(bytes, b.half)}
	w := &waiter{h, make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, w)
	b.grantLocked()
	b.mu.Unlock()
	select {
	case <-w.granted:
		return h, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiting, w)
	if i < 0 { // granted all the same
		return h, nil
	}
	b.waiting = slices.Delete(b.waiting, i, i+1)
	b.grantLocked() // it may have kept others waiting
	return nil, ctx.Err()
}

// Bytes returns how many bytes are held; none by a nil Hold.
func (h *Hold) Bytes() int {
	if h == nil {
		return 0
	}
	return h.bytes
}

// Keep gives back all but that many bytes. A nil Hold has nothing to give back.
func (h *Hold) Keep(bytes int) {
	if h == nil || bytes >= h.bytes {
		return
	}
	b := h.share.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	h.takeLocked(bytes - h.bytes)
	h.bytes = bytes
	if bytes == 0 {
		delete(b.holds, h)
	}
	b.grantLocked()
}

// Oldest returns when the oldest hold began, or now when there is none.
func (b *Budget) Oldest() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	oldest := time.Now()
	for h := range b.holds {
		if h.since.Before(oldest) {
			oldest = h.since
		}
	}
	return oldest
}

// grantLocked grants the bytes that are free to those that wait: to each from its own part, and from the common half
// first to the share that holds least of it. While that one waits for more bytes, no other gets any of the common half.
func (b *Budget) grantLocked() {
	b.waiting = slices.DeleteFunc(b.waiting, func(w *waiter) bool {
		return w.hold.share.own+w.hold.bytes <= b.half/b.shares && b.holdLocked(w, false)
	})
	for len(b.waiting) > 0 {
		first := slices.MinFunc(b.waiting, func(x, y *waiter) int {
			return cmp.Compare(x.hold.share.common, y.hold.share.common)
		})
		if b.common+first.hold.bytes > b.half {
			return
		}
		b.waiting = slices.DeleteFunc(b.waiting, func(w *waiter) bool { return w == first })
		b.holdLocked(first, true)
	}
}

func (b *Budget) holdLocked(w *waiter, common bool) bool {
	w.hold.common, w.hold.since = common, time.Now()
	w.hold.takeLocked(w.hold.bytes)
	b.holds[w.hold] = struct{}{}
	close(w.granted)
	return true
}

// takeLocked adds bytes, or takes them away.
func (h *Hold) takeLocked(bytes int) {
	if !h.common {
		h.share.own += bytes
		return
	}
	h.share.common += bytes
	h.share.budget.common += bytes
}
