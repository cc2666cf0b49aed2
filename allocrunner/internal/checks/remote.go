package checks

import (
	"context"

	"taskapi/allocrunner/interfaces"
)

// remote is a check as a provider knows that has it checked elsewhere.
type remote struct {
	provider interfaces.CheckingProvider // nil: this package runs the check
	id       string                      // of the service
	n        int                         // of the check
}

// statuses are what the result of a run is elsewhere.
var statuses = map[interfaces.CheckStatus]outcome{
	interfaces.CheckFailure: {}, interfaces.CheckWarning: {warning: true}, interfaces.CheckSuccess: {ok: true},
}

// probe reads what the provider has found.
func (r remote) probe() func(context.Context) outcome {
	return func(context.Context) outcome {
		result, ok := r.provider.Result(r.id, r.n)
		if !ok {
			return outcome{none: true}
		}
		o := statuses[result.Status]
		o.output = result.Output[:min(len(result.Output), maxOutput)]
		return o
	}
}

// fed returns the probe, with the provider told of each result.
func (r remote) fed(probe func(context.Context) outcome) func(context.Context) outcome {
	if r.provider == nil {
		return probe
	}
	return func(ctx context.Context) outcome {
		o := probe(ctx)
		result := interfaces.CheckResult{Status: interfaces.CheckFailure, Output: o.output}
		switch {
		case o.ok:
			result.Status = interfaces.CheckSuccess
		case o.warning:
			result.Status = interfaces.CheckWarning
		}
		r.provider.Feed(r.id, r.n, result)
		return o
	}
}
