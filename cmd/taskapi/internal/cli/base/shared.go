package base

import "taskapi/allocrunner/cluster"

// OpenShared returns the store of OpenCluster, and whether other machines use it, too. The caller closes it.
func (l Layout) OpenShared() (store cluster.Store, several bool) {
	store = l.OpenCluster()
	_, several = cluster.As[cluster.Fresher](store)
	return store, several
}
