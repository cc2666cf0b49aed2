package clusterapi

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
)

// Variables returns variables as the API serves them.
func Variables(kept *variables.Service) handlers.Variables { return variablesAPI{kept} }

type variablesAPI struct{ *variables.Service }

func (v variablesAPI) OfTask(namespace, job string) handlers.Variables {
	return variablesAPI{v.Service.OfTask(namespace, job)}
}

func (v variablesAPI) Read(ctx context.Context, namespace, path string) (*api.Variable, uint64, error) {
	found, index, err := v.Service.Read(ctx, namespace, path)
	return found, index, variableError(err)
}

func (v variablesAPI) List(ctx context.Context, namespace, prefix string,
	concerns func(namespace, path string) bool,
) ([]*api.VariableMetadata, uint64, error) {
	list, index, err := v.Service.List(ctx, namespace, prefix, concerns)
	return list, index, variableError(err)
}

func (v variablesAPI) Await(ctx context.Context, namespace, prefix string, after uint64, concerns func(namespace, path string) bool) error {
	return variableError(v.Service.Await(ctx, namespace, prefix, after, concerns))
}

func (v variablesAPI) Put(ctx context.Context, w *api.Variable, check *uint64) (*api.Variable, uint64, error) {
	written, index, err := v.Service.Put(ctx, w, check)
	return written, index, variableError(err)
}

func (v variablesAPI) Delete(ctx context.Context, namespace, path string, check *uint64) (uint64, error) {
	index, err := v.Service.Delete(ctx, namespace, path, check)
	return index, variableError(err)
}

func (v variablesAPI) Acquire(ctx context.Context, w *api.Variable) (*api.Variable, uint64, error) {
	written, index, err := v.Service.Acquire(ctx, w)
	return written, index, variableError(err)
}

func (v variablesAPI) Renew(ctx context.Context, namespace, path, lockID string) (*api.VariableMetadata, uint64, error) {
	renewed, index, err := v.Service.Renew(ctx, namespace, path, lockID)
	return renewed, index, variableError(err)
}

func (v variablesAPI) Release(ctx context.Context, namespace, path, lockID string) (*api.Variable, uint64, error) {
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
