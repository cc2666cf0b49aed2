package interfaces_test

import (
	"sync"
	"testing"

	"taskapi/allocrunner/interfaces"
)

func TestHookResources(t *testing.T) {
	var r interfaces.HookResources
	one, two := interfaces.NewHookKey[int]("n"), interfaces.NewHookKey[int]("n")
	if _, ok := one.Get(&r); ok {
		t.Error("there is a value before any was set")
	}
	one.Set(&r, 1)
	if got, ok := one.Get(&r); !ok || got != 1 {
		t.Errorf("got %d, %v, want 1", got, ok)
	}
	if _, ok := two.Get(&r); ok {
		t.Error("a key has the value of another of the same name")
	}
	one.Set(&r, 2)
	if got, _ := one.Get(&r); got != 2 {
		t.Errorf("got %d, want what was set last", got)
	}
	if one.String() != "n" {
		t.Errorf("the key is called %q", one)
	}
}

// TestHookResourcesAreShared by hooks of many tasks at once.
func TestHookResourcesAreShared(t *testing.T) {
	var r interfaces.HookResources
	key := interfaces.NewHookKey[[]int]("list")
	var hooks sync.WaitGroup
	for i := range 8 {
		hooks.Go(func() {
			key.Set(&r, []int{i, i})
			if got, ok := key.Get(&r); !ok || got[0] != got[1] {
				t.Errorf("got %v, %v", got, ok)
			}
		})
	}
	hooks.Wait()
}
