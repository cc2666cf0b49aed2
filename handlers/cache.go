package handlers

import (
	"sync/atomic"

	"github.com/hashicorp/nomad/api"
)

// cache keeps the latest encoding of one kind of answer. A single entry is enough for a process that runs one
// allocation, where all are shown the same. Several requests that miss at once encode several times; one of them stays.
type cache struct {
	latest atomic.Pointer[cached]
}

// cacheKey identifies what an encoding was made from: equal keys, equal bytes.
type cacheKey struct {
	alloc   string
	version uint64
	shown   *api.Allocation // instead of both
	extra   string
}

type cached struct {
	key  cacheKey
	body *body
}

// get returns the encoding for key, or else that of the value that fresh returns, and keeps it. Failures aren't kept.
func (c *cache) get(key cacheKey, fresh func() any) (*body, error) {
	if kept := c.latest.Load(); kept != nil && kept.key == key {
		return kept.body, nil
	}
	b, err := encode(fresh())
	if err != nil {
		return nil, err
	}
	c.latest.Store(&cached{key: key, body: b})
	return b, nil
}
