package handlers

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// Parser reads and judges jobs that are not registered.
type Parser interface {
	// Parse returns the job of a text, HCL or JSON, which can name no file of this machine. Errors: apierror.Invalid with the places.
	Parse(ctx context.Context, text api.JobsParseRequest) (*api.Job, error)
	// Validate returns what keeps the job from running here, and what of it would be done differently.
	Validate(ctx context.Context, job *api.Job) (Validation, error)
}

// Validation is what is to be said of a job.
type Validation struct {
	Errors   []string // none when it would run
	Warnings string   // for people; empty for none
}

// maxParse is the ceiling of the body of a text that is to be parsed: a job, in JSON's quotes.
const maxParse = 2 * maxJob

// parse answers PUT /v1/jobs/parse: the job that a text describes. canonicalize adds what it leaves to defaults.
func (a *API) parse(ctx context.Context, r *request) (answer, error) {
	if a.config.Parser == nil {
		return answer{}, apierror.New(apierror.NoRoute)
	}
	var text api.JobsParseRequest
	if err := r.decode(&text, false); err != nil {
		return answer{}, err
	}
	if text.JobHCL == "" {
		return answer{}, invalid("Job spec is empty")
	}
	leave, err := a.enterParsing(ctx, r)
	if err != nil {
		return answer{}, err
	}
	defer leave()
	job, err := a.config.Parser.Parse(ctx, text)
	if err != nil {
		return answer{}, fmt.Errorf("parse: %w", err)
	}
	return respond(job)
}

// validate answers PUT /v1/validate/job: what keeps a job, of any ID, from running here. A job that can't run is an answer, no error.
func (a *API) validate(ctx context.Context, r *request) (answer, error) {
	if a.config.Parser == nil {
		return answer{}, apierror.New(apierror.NoRoute)
	}
	var want api.JobValidateRequest
	if err := r.decode(&want, false); err != nil {
		return answer{}, err
	}
	switch {
	case want.Job == nil:
		return answer{}, apierror.New(apierror.JobMissing)
	case valueOf(want.Job.ID) == "":
		return answer{}, apierror.New(apierror.JobWithoutID)
	}
	leave, err := a.enterParsing(ctx, r)
	if err != nil {
		return answer{}, err
	}
	defer leave()
	found, err := a.config.Parser.Validate(ctx, want.Job)
	if err != nil {
		return answer{}, fmt.Errorf("validate: %w", err)
	}
	response := api.JobValidateResponse{DriverConfigValidated: true, ValidationErrors: found.Errors, Warnings: found.Warnings}
	if n := len(found.Errors); n > 0 {
		response.Error = fmt.Sprintf("%d things of the job can't run here", n)
		if n == 1 {
			response.Error = found.Errors[0]
		}
	}
	return respond(response)
}

// enterParsing waits until no other job is parsed or judged: one may take many times its size in memory. leave ends the turn. Errors:
// *auth.Denial when the token is not valid any more after the wait, ctx's.
func (a *API) enterParsing(ctx context.Context, r *request) (leave func(), err error) {
	select {
	case a.parsing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave = func() { <-a.parsing }
	if err := r.recheck(); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}
