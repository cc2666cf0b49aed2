package agent

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
	"taskapi/identity"
)

// OpenVariables returns the variables of a store, sealed by the ring's seal key.
func OpenVariables(store cluster.Store, ring *identity.Keyring) (*variables.Service, error) {
	sealer, err := ring.Sealer("variables")
	if err != nil {
		return nil, err
	}
	return variables.New(variables.Config{Store: store, Sealer: sealer}), nil
}

// variablesAdapter is variables as the API serves them: their errors become the API's.
type variablesAdapter struct{ *variables.Service }

var _ handlers.Variables = variablesAdapter{}

func (v variablesAdapter) Read(ctx context.Context, namespace, path string) (*api.Variable, uint64, error) {
	found, index, err := v.Service.Read(ctx, namespace, path)
	return found, index, variableError(err)
}

func (v variablesAdapter) List(ctx context.Context, namespace, prefix string,
	concerns func(namespace, path string) bool,
) ([]*api.VariableMetadata, uint64, error) {
	list, index, err := v.Service.List(ctx, namespace, prefix, concerns)
	return list, index, variableError(err)
}

func (v variablesAdapter) Await(ctx context.Context, namespace, prefix string, after uint64, concerns func(namespace, path string) bool) error {
	return variableError(v.Service.Await(ctx, namespace, prefix, after, concerns))
}

func (v variablesAdapter) Put(ctx context.Context, w *api.Variable, check *uint64) (*api.Variable, uint64, error) {
	written, index, err := v.Service.Put(ctx, w, check)
	return written, index, variableError(err)
}

func (v variablesAdapter) Delete(ctx context.Context, namespace, path string, check *uint64) (uint64, error) {
	index, err := v.Service.Delete(ctx, namespace, path, check)
	return index, variableError(err)
}

func (v variablesAdapter) Acquire(ctx context.Context, w *api.Variable) (*api.Variable, uint64, error) {
	written, index, err := v.Service.Acquire(ctx, w)
	return written, index, variableError(err)
}

func (v variablesAdapter) Renew(ctx context.Context, namespace, path, lockID string) (*api.VariableMetadata, uint64, error) {
	renewed, index, err := v.Service.Renew(ctx, namespace, path, lockID)
	return renewed, index, variableError(err)
}

func (v variablesAdapter) Release(ctx context.Context, namespace, path, lockID string) (*api.Variable, uint64, error) {
	released, index, err := v.Service.Release(ctx, namespace, path, lockID)
	return released, index, variableError(err)
}

// variableError returns an error of variables as the API has it. What is not here is a fault.
func variableError(err error) error {
	invalid, isInvalid := errors.AsType[*variables.InvalidError](err)
	conflict, isConflict := errors.AsType[*variables.ConflictError](err)
	damaged, isDamaged := errors.AsType[*variables.DamagedError](err)
	switch {
	case isConflict:
		return &handlers.VariableConflictError{Variable: conflict.Variable}
	case isInvalid:
		return apierror.New(apierror.Invalid, invalid.Words)
	case isDamaged:
		return apierror.New(apierror.Unavailable, damaged).Because(err)
	case errors.Is(err, variables.ErrNotFound):
		return apierror.New(apierror.NoLockVariable)
	case errors.Is(err, variables.ErrNotLocked):
		return apierror.New(apierror.NoLock)
	case errors.Is(err, variables.ErrLocked):
		return apierror.New(apierror.VariableLocked)
	case errors.Is(err, variables.ErrFull):
		return apierror.New(apierror.StoreFull, err).Because(err)
	}
	return storeError(err)
}

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
