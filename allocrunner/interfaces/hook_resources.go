package interfaces

import "sync"

// HookResources carries data from the allocation's hooks to its tasks' hooks, under one lock. Its zero value is empty.
type HookResources struct {
	mu     sync.RWMutex // guards values
	values map[any]any  // by *HookKey
}

// HookKey names a value of one type in a HookResources. Two keys differ even when their names do not. Make one with NewHookKey and
// share it between the hook that sets and those that get.
type HookKey[T any] struct{ name string }

// NewHookKey makes a key; the name is for people.
func NewHookKey[T any](name string) *HookKey[T] { return &HookKey[T]{name} }

// String returns the key's name.
func (k *HookKey[T]) String() string { return k.name }

// Set sets the value for all hooks of the allocation.
func (k *HookKey[T]) Set(r *HookResources, value T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil {
		r.values = map[any]any{}
	}
	r.values[k] = value
}

// Get returns the value, and whether it has been set.
func (k *HookKey[T]) Get(r *HookResources) (value T, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	value, ok = r.values[k].(T)
	return value, ok
}
