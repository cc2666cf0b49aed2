package handlers

import "sync/atomic"

// cache keeps the latest encoding of one kind of answer. There is a single slot: a process runs one allocation, and with more
// of them the slot is merely of less use. Several requests that miss at once encode several times; one of them stays.
type cache struct {
	slot atomic.Pointer[cached]
}

// cacheKey says what an encoding was made from: equal keys, equal bytes.
type cacheKey struct {
	alloc   string
	version uint64
	extra   string
}

type cached struct {
	key  cacheKey
	body *body
}

// get is the encoding for key, made by the value that fresh returns when the slot holds another one. Failures aren't kept.
func (c *cache) get(key cacheKey, fresh func() any) (*body, error) {
	if kept := c.slot.Load(); kept != nil && kept.key == key {
		return kept.body, nil
	}
	b, err := encode(fresh())
	if err != nil {
		return nil, err
	}
	c.slot.Store(&cached{key: key, body: b})
	return b, nil
}
