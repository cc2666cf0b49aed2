// Package clusterapi joins what allocations have in common, the variables and the registry in a cluster.Store, to the API that serves it: their
// errors become the API's. It promises that every error which a caller or the store is the cause of has its status and words, and that any
// other stays a fault. It is for those who make a handlers.API: taskapi's agent, and auth/authtest.
package clusterapi

import (
	"errors"

	"taskapi/allocrunner/cluster"
	"taskapi/handlers/apierror"
)

// storeError returns an error of the store as the API has it. What is not here is a fault.
func storeError(err error) error {
	switch {
	case errors.Is(err, cluster.ErrFull):
		return apierror.New(apierror.StoreFull, cluster.ErrFull).Because(err)
	case errors.Is(err, cluster.ErrUncertain):
		return apierror.New(apierror.Unavailable, cluster.ErrUncertain).Because(err)
	case errors.Is(err, cluster.ErrUnavailable):
		return apierror.New(apierror.Unavailable, cluster.ErrUnavailable).Because(err)
	}
	return err
}
