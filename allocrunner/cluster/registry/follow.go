package registry

import (
	"context"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/wake"
)

// Change is a new, a changed or a removed registration.
type Change struct {
	Gone bool // the registration was removed

	// Service returns the registration, or the last version of a removed one; nil for a registration of a later version of
	// this program, which can't be read. The first call decodes the registration, which must not be changed.
	Service func() *api.ServiceRegistration
}

func newChange(entry cluster.Entry, gone bool) *Change {
	return &Change{gone, sync.OnceValue(func() *api.ServiceRegistration {
		s, _ := decode(entry)
		return s
	})}
}

// keptChanges is how many of the latest changes a Feed keeps at least, for late readers.
const keptChanges = 256

// Feed keeps the latest changes of the registrations in a namespace, for any number of readers, and decodes none. In a
// store of several machines, where each reader costs, it follows changes only while somebody reads.
type Feed struct {
	store  cluster.Store
	prefix string
	lazy   bool
	wanted wake.Signal              // somebody reads
	begun  chan struct{}            // closed when changes are reported
	index  uint64                   // up to which changes are known; this field and the next are used by Run alone
	known  map[string]cluster.Entry // by key: as they were last reported

	mu      sync.Mutex // guards the fields below
	kept    []*Change
	next    uint64        // the number of the next change
	more    chan struct{} // closed and replaced with every new change
	readers int
	pause   func() // makes Run wait until there is a reader
}

// Feed returns a feed of changes from now on, or from the first Read on, which Run reads. If the store can't be read
// then, every registration is a change once it can. An empty namespace stands for all.
func (r *Registry) Feed(ctx context.Context, namespace string) *Feed {
	_, shared := cluster.As[cluster.Fresher](r.store)
	f := &Feed{store: r.store, prefix: prefixOf(namespace, ""), lazy: shared, known: map[string]cluster.Entry{},
		wanted: wake.New(), begun: make(chan struct{}), more: make(chan struct{}), pause: func() {}}
	if !f.lazy {
		f.begin(ctx)
	}
	return f
}

func (f *Feed) begin(ctx context.Context) {
	if page, err := f.store.List(ctx, cluster.Span{Prefix: f.prefix}); err == nil {
		f.diff(page)
	}
	close(f.begun)
}

// Read says that somebody reads the changes from now on, until done is called.
func (f *Feed) Read(ctx context.Context) (done func()) {
	f.mu.Lock()
	f.readers++
	f.mu.Unlock()
	f.wanted.Send()
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout) // a reader has other things to read
	defer cancel()
	select {
	case <-f.begun:
	case <-ctx.Done():
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.readers--; f.readers == 0 && f.lazy {
			f.pause()
		}
	}
}

// Since returns the changes from a number on, the oldest first; the number of the next change; and a channel that is
// closed when there are more changes. Changes that are not kept any more are left out.
func (f *Feed) Since(number uint64) (changes []*Change, next uint64, more <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := min(f.next-min(number, f.next), uint64(len(f.kept)))
	return slices.Clip(f.kept[len(f.kept)-int(count):]), f.next, f.more
}

// Run reads changes until ctx ends.
func (f *Feed) Run(ctx context.Context) {
	for ctx.Err() == nil {
		reading, pause := context.WithCancel(ctx)
		f.mu.Lock()
		idle := f.lazy && f.readers == 0
		f.pause = pause
		f.mu.Unlock()
		if idle {
			select {
			case <-f.wanted:
			case <-ctx.Done():
			}
		} else {
			f.follow(reading)
		}
		pause()
	}
}

// follow reads changes until ctx ends.
func (f *Feed) follow(ctx context.Context) {
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
			_ = wake.Sleep(ctx, lastPause) // the loop sees that ctx has ended
		}
	}
}

func (f *Feed) put(changes []*Change) {
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
func (f *Feed) read(ctx context.Context) ([]*Change, error) {
	since, err := f.store.Watch(ctx, f.prefix, f.index)
	if err != nil {
		return nil, err
	}
	if since.Gap {
		page, err := f.store.List(ctx, cluster.Span{Prefix: f.prefix})
		if err != nil {
			return nil, err
		}
		return f.diff(page), nil
	}
	var changes []*Change
	for _, key := range since.Keys {
		// Watch has brought the change here.
		page, err := f.store.List(ctx, cluster.Span{Prefix: key, Limit: 1, Local: true})
		if err != nil { // the changes of earlier keys are reported now, and the others once they can be read
			return changes, err
		}
		entry := cluster.Entry{Key: key}
		if len(page.Entries) > 0 && page.Entries[0].Key == key {
			entry = page.Entries[0]
		}
		changes = append(changes, f.note(entry)...)
	}
	f.index = since.Index
	return changes, nil
}

// diff returns the changes between what is known and a page.
func (f *Feed) diff(page cluster.Page) (changes []*Change) {
	there := map[string]bool{}
	for _, entry := range page.Entries {
		there[entry.Key] = true
		changes = append(changes, f.note(entry)...)
	}
	for key := range f.known {
		if !there[key] {
			changes = append(changes, f.note(cluster.Entry{Key: key})...)
		}
	}
	f.index = page.Index
	return changes
}

// note remembers an entry, and returns the change, if it differs from what was known.
func (f *Feed) note(entry cluster.Entry) []*Change {
	before, known := f.known[entry.Key]
	switch {
	case entry.ModifyIndex == 0 && known:
		delete(f.known, entry.Key)
		return []*Change{newChange(before, true)}
	case entry.ModifyIndex == before.ModifyIndex:
		return nil
	}
	f.known[entry.Key] = entry
	return []*Change{newChange(entry, false)}
}
