package route

import (
	"sync/atomic"

	"github.com/hashicorp/nomad/api"
)

// Cache keeps the latest encoding of one kind of answer. A single entry is enough for a process that runs one
// allocation, where all are shown the same. Several requests that miss at once encode several times; one of them stays.
type Cache struct {
	latest atomic.Pointer[cached]
}

// CacheKey identifies what an encoding was made from: equal keys, equal bytes.
type CacheKey struct {
	Alloc   string
	Version uint64
	Shown   *api.Allocation // instead of both
	Extra   string
}

type cached struct {
	key  CacheKey
	body *body
}

// Get returns the encoding for key, or else that of the value that fresh returns, and keeps it. Failures aren't kept.
func (c *Cache) Get(key CacheKey, fresh func() any) (*body, error) {
	if kept := c.latest.Load(); kept != nil && kept.key == key {
		return kept.body, nil
	}
	b, err := Encode(fresh())
	if err != nil {
		return nil, err
	}
	c.latest.Store(&cached{key: key, body: b})
	return b, nil
}
