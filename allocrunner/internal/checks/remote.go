package checks

import (
	"context"

	"github.com/hashicorp/nomad/api"

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

// probe reads what the provider has found of a check. Where the job says so, a warning is as good as a success.
func (r remote) probe(c api.ServiceCheck) func(context.Context) outcome {
	return func(context.Context) outcome {
		result, ok := r.provider.Result(r.id, r.n)
		if !ok {
			return outcome{none: true}
		}
		o := statuses[result.Status].settled(c)
		o.output = result.Output[:min(len(result.Output), maxOutput)]
		return o
	}
}

// settled returns what a warning is where providers have warnings.
func (o outcome) settled(c api.ServiceCheck) outcome {
	o.ok = o.ok || o.warning && c.OnUpdate == api.OnUpdateIgnoreWarn
	return o
}

// fed returns the probe of a script, which gives the provider each result.
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
