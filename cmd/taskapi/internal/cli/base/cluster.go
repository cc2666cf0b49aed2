package base

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/stores"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/identity"
)

// OpenCluster returns the store that the allocations of the data directory share, with those of other machines if the
// directory's settings say so. Its first use opens it, and returns what is wrong with the settings.
func (l Layout) OpenCluster() cluster.Store {
	shared, err := settings.ClusterOf(string(l.Dir))
	if err != nil {
		return stores.Unusable(err)
	}
	return stores.Shared(l.Cluster(), shared, func(key []byte, purpose string) (cluster.Sealer, error) {
		return identity.NewSealer(key, purpose)
	})
}

// tryCluster returns what is wrong with the settings of the store, and with their files.
func (l Layout) tryCluster() error {
	shared, err := settings.ClusterOf(string(l.Dir))
	if err == nil {
		if err = shared.TryFiles(); err != nil {
			err = fmt.Errorf("%s: %w", filepath.Join(string(l.Dir), settings.Name), err)
		}
	}
	return err
}

// Shares reports whether other machines use the store, too.
func (l Layout) Shares() bool {
	shared, err := settings.ClusterOf(string(l.Dir))
	return err != nil || shared.Configured() // the use of the store returns the error
}

// HasCluster reports whether there may be something in the store.
func (l Layout) HasCluster() bool {
	_, err := os.Lstat(l.Cluster())
	return !errors.Is(err, fs.ErrNotExist) || l.Shares()
}
