package jobs

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/route"
)

// Parser parses and validates jobs that are not registered.
type Parser interface {
	// Parse returns the job that a text describes, HCL or JSON. The text can name no file of this machine. Errors:
	// apierror.Invalid with the places.
	Parse(ctx context.Context, text api.JobsParseRequest) (*api.Job, error)
	// Validate returns why the job can't run here, and what would be done differently.
	Validate(ctx context.Context, job *api.Job) (Validation, error)
}

// Validation is the result of Validate.
type Validation struct {
	Errors   []string // none when it would run
	Warnings string   // for people; empty for none
}

// maxParse is the ceiling of the body of a text to parse: a job, in JSON's quotes.
const maxParse = 2 * maxJob

// parse answers PUT /v1/jobs/parse: the job that a text describes. canonicalize fills in the defaults.
func (h *handlers) parse(ctx context.Context, r *route.Request, text *api.JobsParseRequest) (route.Answer, error) {
	if text.JobHCL == "" {
		return route.Answer{}, route.Invalid("Job spec is empty")
	}
	if err := r.TakeTurn(ctx, h.parsing); err != nil {
		return route.Answer{}, err
	}
	defer h.parsing.Release(1)
	job, err := h.Parser.Parse(ctx, *text)
	if err != nil {
		return route.Answer{}, fmt.Errorf("parse: %w", err)
	}
	return route.Respond(job)
}

// validate answers PUT /v1/validate/job: why a job, of any ID, can't run here. A job that can't run is an answer, not
// an error.
func (h *handlers) validate(ctx context.Context, r *route.Request, want *api.JobValidateRequest) (route.Answer, error) {
	if err := checkJob(want.Job); err != nil {
		return route.Answer{}, err
	}
	if err := r.TakeTurn(ctx, h.parsing); err != nil {
		return route.Answer{}, err
	}
	defer h.parsing.Release(1)
	found, err := h.Parser.Validate(ctx, want.Job)
	if err != nil {
		return route.Answer{}, fmt.Errorf("validate: %w", err)
	}
	response := api.JobValidateResponse{
		DriverConfigValidated: true, ValidationErrors: found.Errors, Warnings: found.Warnings,
	}
	// Nomad's command prints this text alone.
	response.Error = strings.Join(found.Errors, "\n")
	return route.Respond(response)
}
