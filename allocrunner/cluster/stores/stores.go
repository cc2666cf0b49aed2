// Package stores opens the cluster.Store of a data directory. Another kind of store, such as one on a server, is a
// package of its own: the tests of this package then hold that it keeps what cluster.Store promises.
package stores

import (
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/cluster/etcd"
)

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
	return disk.New(dir) // which touches nothing before its first use
}

// Instead opens the store that Shared returns, for tests of several machines that share one; nil outside of tests.
var Instead func(dir string) cluster.Store
