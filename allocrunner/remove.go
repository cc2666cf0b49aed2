package allocrunner

import "taskapi/allocrunner/internal/allocdir"

// RemoveDir removes the directory of an allocation that is over or has never begun. Another one may begin in its place meanwhile.
func RemoveDir(dir string) error { return allocdir.Remove(dir) }

// RemoveLeftovers removes what calls of RemoveDir that were cut short have left in the directory of all allocations.
func RemoveLeftovers(allocs string) error { return allocdir.RemoveLeftovers(allocs) }
