// Package stores lists the kinds of cluster.Store, and opens one. A new kind, such as one on a server, is a package of its own and a row here.
package stores

import (
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/cluster/memory"
)

// Kind names a kind of store.
type Kind int

// The kinds of stores.
const (
	Disk   Kind = iota // files in a directory, for all processes of this machine
	Memory             // nothing is kept: for allocations that are simulated
)

var kinds = [...]func(dir string) cluster.Store{
	Disk:   func(dir string) cluster.Store { return disk.New(dir) },
	Memory: func(string) cluster.Store { return memory.New() },
}

// Open returns a store of a kind, which keeps its files, if it has any, in a directory. It touches nothing: the first use of the store does, and
// returns what is wrong.
func Open(kind Kind, dir string) cluster.Store { return kinds[kind](dir) }
