package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	"taskapi/internal/wake"
)

const (
	// keptChanges is how many of the latest changes a Feed keeps at least, for late readers.
	keptChanges = 256
	// feedStart bounds how long a reader of a Feed waits for its first look at the store: it has other things to read.
	feedStart = 2 * time.Second
	// feedRetry is the pause after a failed look.
	feedRetry = 10 * time.Second
)

// Change is a new, a changed or a removed entry.
type Change[T any] struct {
	Gone bool // the entry was removed

	// Value returns the decoded entry, or the last version of a removed one. The first call decodes it. It must not be
	// changed.
	Value func() T
}

// FeedConfig says what a Feed follows. Prefix and Decode are required.
type FeedConfig[T any] struct {
	Prefix string
	Decode func(Entry) T

	// Head is how many bytes of a value are read at most, 0 for all, and Keep returns the part of them that Decode needs;
	// nil for all.
	Head int
	Keep func(value []byte) []byte

	// Lazy follows changes only while somebody reads.
	Lazy bool
	// Watch is the store's Watch with the prefix; nil for just this.
	Watch func(ctx context.Context, after uint64) (Changes, error)
}

// Feed keeps the latest changes of the entries with a prefix, for any number of readers, and decodes none.
type Feed[T any] struct {
	FeedConfig[T]
	store Store
	begun chan struct{}    // closed when changes are reported
	index uint64           // up to which changes are known; this field and the next are used by follow alone
	known map[string]Entry // by key: as they were last reported

	mu      sync.Mutex // guards the fields below
	kept    []*Change[T]
	next    uint64        // the number of the next change
	more    chan struct{} // closed and replaced with every new change
	readers int
	stop    func()        // ends the goroutine of a lazy feed that has readers
	ended   chan struct{} // closed when the latest such goroutine has ended; nil before the first
}

// NewFeed returns a feed of changes from now on, which Run reads. A lazy one is of changes from the first Read on. If
// the store can't be read then, every entry is a change once it can.
func NewFeed[T any](ctx context.Context, store Store, c FeedConfig[T]) *Feed[T] {
	if c.Watch == nil {
		c.Watch = func(ctx context.Context, after uint64) (Changes, error) { return store.Watch(ctx, c.Prefix, after) }
	}
	if c.Keep == nil {
		c.Keep = func(value []byte) []byte { return value }
	}
	f := &Feed[T]{FeedConfig: c, store: store, begun: make(chan struct{}), known: map[string]Entry{},
		more: make(chan struct{})}
	if !f.Lazy {
		f.begin(ctx)
	}
	return f
}

func (f *Feed[T]) begin(ctx context.Context) {
	if page, err := f.store.List(ctx, Span{Prefix: f.Prefix, Head: f.Head}); err == nil {
		f.diff(page)
	}
	close(f.begun)
}

// Read says that somebody reads the changes from now on, until done is called.
func (f *Feed[T]) Read(ctx context.Context) (done func()) {
	f.mu.Lock()
	if f.readers++; f.readers == 1 && f.Lazy {
		f.startLocked()
	}
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, feedStart)
	defer cancel()
	select {
	case <-f.begun:
	case <-ctx.Done():
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.readers--; f.readers == 0 && f.Lazy {
			f.stop()
		}
	}
}

// startLocked follows changes in a goroutine, once an earlier one has ended.
func (f *Feed[T]) startLocked() {
	ctx, cancel := context.WithCancel(context.Background())
	earlier, ended := f.ended, make(chan struct{})
	f.stop, f.ended = cancel, ended
	go func() {
		defer close(ended)
		if earlier != nil {
			<-earlier
		}
		f.follow(ctx)
	}()
}

// Since returns the changes from a number on, the oldest first; the number of the next change; and a channel that is
// closed when there are more changes. Changes that are not kept any more are left out.
func (f *Feed[T]) Since(number uint64) (changes []*Change[T], next uint64, more <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := min(f.next-min(number, f.next), uint64(len(f.kept)))
	return slices.Clip(f.kept[len(f.kept)-int(count):]), f.next, f.more
}

// Run reads changes until ctx ends. It does nothing for a lazy feed.
func (f *Feed[T]) Run(ctx context.Context) {
	if !f.Lazy {
		f.follow(ctx)
	}
}

// follow reads changes until ctx ends.
func (f *Feed[T]) follow(ctx context.Context) {
	select {
	case <-f.begun:
	default:
		f.begin(ctx)
	}
	for ctx.Err() == nil {
		changes, err := f.read(ctx)
		if len(changes) > 0 {
			f.put(changes)
		}
		if err != nil {
			_ = wake.Sleep(ctx, feedRetry) // the loop sees that ctx has ended
		}
	}
}

func (f *Feed[T]) put(changes []*Change[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = append(f.kept, changes...)
	if old := len(f.kept) - keptChanges; old >= keptChanges {
		f.kept = slices.Clone(f.kept[old:]) // readers keep parts of the first one
	}
	f.next += uint64(len(changes))
	close(f.more)
	f.more = make(chan struct{})
}

// read waits for changes.
func (f *Feed[T]) read(ctx context.Context) ([]*Change[T], error) {
	since, err := f.Watch(ctx, f.index)
	if err != nil {
		return nil, err
	}
	if since.Gap {
		page, err := f.store.List(ctx, Span{Prefix: f.Prefix, Head: f.Head})
		if err != nil {
			return nil, err
		}
		return f.diff(page), nil
	}
	var changes []*Change[T]
	for _, key := range since.Keys {
		// Watch has brought the change here.
		page, err := f.store.List(ctx, Span{Prefix: key, Limit: 1, Head: f.Head, Local: true})
		if err != nil { // the changes of earlier keys are reported now, and the others once they can be read
			return changes, err
		}
		entry := Entry{Key: key}
		if len(page.Entries) > 0 && page.Entries[0].Key == key {
			entry = page.Entries[0]
		}
		changes = append(changes, f.note(entry)...)
	}
	f.index = since.Index
	return changes, nil
}

// diff returns the changes between what is known and a page.
func (f *Feed[T]) diff(page Page) (changes []*Change[T]) {
	there := map[string]bool{}
	for _, entry := range page.Entries {
		there[entry.Key] = true
		changes = append(changes, f.note(entry)...)
	}
	for key := range f.known {
		if !there[key] {
			changes = append(changes, f.note(Entry{Key: key})...)
		}
	}
	f.index = page.Index
	return changes
}

// note remembers an entry, and returns the change, if it differs from what was known.
func (f *Feed[T]) note(entry Entry) []*Change[T] {
	before, known := f.known[entry.Key]
	switch {
	case entry.ModifyIndex == 0 && known:
		delete(f.known, entry.Key)
		return []*Change[T]{f.change(before, true)}
	case entry.ModifyIndex == before.ModifyIndex:
		return nil
	}
	entry.Value = f.Keep(entry.Value)
	f.known[entry.Key] = entry
	return []*Change[T]{f.change(entry, false)}
}

func (f *Feed[T]) change(entry Entry, gone bool) *Change[T] {
	return &Change[T]{gone, sync.OnceValue(func() T { return f.Decode(entry) })}
}
