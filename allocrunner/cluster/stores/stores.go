// Package stores lists the kinds of cluster.Store, and opens one. A new kind, such as one on a server, is a package of
// its own and a row here: the tests of this package then hold that it keeps what cluster.Store promises.
package stores

import (
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/cluster/etcd"
)

// Kind names a kind of store.
type Kind int

// The kinds of stores.
const (
	Disk Kind = iota // files in a directory, for all processes of this machine
)

type row struct {
	name string
	open func(dir string) cluster.Store
}

var kinds = []row{
	Disk: {"disk", func(dir string) cluster.Store { return disk.New(dir) }},
}

// Open returns a store of a kind, which keeps its files, if it has any, in a directory. It touches nothing: the first
// use of the store does, and returns what is wrong.
func Open(kind Kind, dir string) cluster.Store { return kinds[kind].open(dir) }

// Seal returns the sealer of a key for a purpose.
type Seal func(key []byte, purpose string) (cluster.Sealer, error)

// Unusable returns a store of which each use returns an error, with cluster.ErrUnavailable.
func Unusable(err error) cluster.Store {
	return etcd.New(etcd.Config{Sealer: func(string) (cluster.Sealer, error) { return nil, err }})
}

// Shared returns the store that the allocations of a data directory share: the one of several machines, if there are
// settings for it, or else that in the directory. It is the one place that decides of which kind this store is.
func Shared(dir string, settings etcd.Settings, seal Seal) cluster.Store {
	if Instead != nil {
		return Instead(dir)
	}
	if settings.Configured() {
		return etcd.New(settings.Config(seal))
	}
	return Open(Disk, dir)
}

// Instead opens the store that Shared returns, for tests of several machines that share one; nil outside of tests.
var Instead func(dir string) cluster.Store
