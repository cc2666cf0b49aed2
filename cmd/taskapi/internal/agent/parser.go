package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/bounded"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/handlers/apierror"
	"taskapi/handlers/jobs"
	"taskapi/identity"
)

// parser reads and judges jobs for the API.
type parser struct {
	settings Settings
	allocs   string // the directory of all allocations
	all      bool   // all allocations of a job are to run
}

var _ jobs.Parser = parser{}

// NewParser returns what judges jobs for the settings, of which all allocations are to run. allocs is the directory of
// the machine's allocations.
func NewParser(settings Settings, allocs string) jobs.Parser {
	return parser{settings: settings, allocs: allocs, all: true}
}

// Parse reads no file, whatever the text says.
func (p parser) Parse(ctx context.Context, text api.JobsParseRequest) (*api.Job, error) {
	job, err := bounded.Parse(ctx, jobspec.Config{
		Filename: "job.hcl", Body: []byte(text.JobHCL), VarText: text.Variables, NoFiles: true, AsWritten: true,
		Audience: identity.DefaultAudience,
	})
	if errors.Is(err, jobspec.ErrInvalid) {
		err = apierror.New(apierror.Invalid, err)
	}
	if err != nil {
		return nil, err
	}
	if text.Canonicalize { // as the SDK does; a registration adds more defaults
		job.Canonicalize()
	}
	return job, nil
}

// canonical returns a job that a client has sent as a job file would give it.
func canonical(sent *api.Job) (*api.Job, error) {
	body, err := json.Marshal(sent)
	if err != nil {
		return nil, fmt.Errorf("encode job: %w", err)
	}
	return jobspec.Parse(jobspec.Config{
		Filename: "job.json", Body: body, NoFiles: true, Audience: identity.DefaultAudience,
	})
}

// Validate judges every group of the job, as taskapi validate does.
func (p parser) Validate(_ context.Context, sent *api.Job) (jobs.Validation, error) {
	var found jobs.Validation
	var groups []*api.TaskGroup
	var findings []review.Finding
	job, err := canonical(sent)
	if err == nil {
		groups, findings, err = p.settings.ReviewAll(job)
	}
	if err != nil {
		found.Errors = []string{err.Error()}
		return found, nil //nolint:nilerr // what is wrong with the job is the answer
	}
	for _, g := range groups {
		if review.AnyRefused(findings) {
			break // whatever the machine has
		}
		findings = append(findings, p.settings.CheckTasks(NewAllocation("", job, g), p.allocs)...)
		findings = append(findings, CheckOwnUser(g, p.settings.IsolateUsers != "")...)
		if err := p.settings.CheckUsers(g); err != nil {
			found.Errors = append(found.Errors, err.Error())
		}
	}
	var warnings []review.Finding
	for _, f := range findings {
		switch {
		case p.all && f.Severity == review.Note && f.Feature == review.CountFeature:
		case f.Severity == review.Refused:
			found.Errors = append(found.Errors, linewriter.OneLine(f.String()))
		default:
			warnings = append(warnings, f)
		}
	}
	found.Warnings = findingLines(warnings)
	return found, nil
}
