package checks

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// remote is a check of a service whose provider may check it itself.
type remote struct {
	provider interfaces.CheckingProvider // nil: this package runs the check
	id       string                      // of the service
	n        int                         // of the check
}

// probe reads the provider's result of a check.
func (r remote) probe(c api.ServiceCheck) func(context.Context) outcome {
	return func(context.Context) outcome {
		result, ok := r.provider.Result(r.id, r.n)
		if !ok {
			return outcome{none: true}
		}
		return outcome{
			ok: result.Status == interfaces.CheckSuccess, warning: result.Status == interfaces.CheckWarning,
			output: result.Output[:min(len(result.Output), maxOutput)],
		}.settled(c)
	}
}

// settled makes a warning a success if the job ignores warnings.
func (o outcome) settled(c api.ServiceCheck) outcome {
	o.ok = o.ok || o.warning && c.OnUpdate == api.OnUpdateIgnoreWarn
	return o
}

// fed returns the probe of a script check, which gives each result to the provider.
func (r remote) fed(c api.ServiceCheck, probe func(context.Context) outcome) func(context.Context) outcome {
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
		return o.settled(c)
	}
}
