package auth

import (
	"slices"
	"sync"

	"taskapi/identity"
)

// keyWatch notices when a source of keys swaps its set.
type keyWatch struct {
	sources []identity.KeySource

	mu    sync.Mutex
	seen  []*identity.KeySet // guarded by mu
	count uint64             // guarded by mu
}

// generation returns a number that grows when a set is swapped. It is called for first uses and bad tokens, never for a
// good token in the cache.
func (k *keyWatch) generation() uint64 {
	now := make([]*identity.KeySet, len(k.sources))
	for i, source := range k.sources {
		now[i] = source.Keys()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Equal(k.seen, now) {
		k.seen = now
		k.count++
	}
	return k.count
}
