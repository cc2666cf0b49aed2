package start

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/bounded"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/identity"
)

// LoadedJob is the job of a job file, its group to run, and its text, which is nil if it is too long to be kept.
type LoadedJob struct {
	Job        *api.Job
	Group      *api.TaskGroup
	Submission *api.JobSubmission
	Source
}

// Source is what messages about a job need of its file.
type Source struct {
	FromFiles *jobspec.FromFiles // texts that they don't quote
	text      jobspec.Config
}

// Hide returns the error without the texts that the job has from files.
func (l *LoadedJob) Hide(err error) error {
	if err == nil {
		return nil
	}
	return maskedError{err, l.FromFiles}
}

// maskedError is an error about a job.
type maskedError struct {
	error
	fromFiles *jobspec.FromFiles
}

func (e maskedError) Error() string { return e.fromFiles.Mask(e.error.Error()) }

func (e maskedError) Unwrap() error { return e.error }

// FileName returns the name of a job file in messages. A client of the agent has sent the one on standard input.
func FileName(path string) string {
	if path == "-" {
		return "job file"
	}
	return path
}

// Read reads a job file; the group is still to be chosen. Every error about the file is a usage error.
func (f *JobFlags) Read(path string, w base.Environment) (*LoadedJob, error) {
	l := &LoadedJob{Source: Source{FromFiles: &jobspec.FromFiles{}}}
	cfg, err := jobspec.ReadFile(path, w.Stdin, jobspec.Config{
		Vars: f.vars, VarFiles: f.varFiles, Environ: w.Env, Audience: identity.DefaultAudience,
		NoFiles: f.NoFiles, FromFiles: l.FromFiles,
	})
	if err != nil {
		return nil, base.Usage(err)
	}
	l.text, l.Submission = cfg, jobspec.Submission(cfg)
	if l.Job, err = bounded.ForCommand(context.Background(), cfg); errors.Is(err, jobspec.ErrInvalid) {
		err = base.Usage(err)
	}
	if err == nil { // the submission counts, not what a file says of another one
		if l.Job.Version, l.Job.SubmitTime = new(f.Version), nil; f.SubmitTime != 0 {
			l.Job.SubmitTime = new(f.SubmitTime)
		}
	}
	return l, err
}

// Load reads a job that is to run, and reviews it for an agent with the settings. What is refused is an error; warnings
// go to standard error.
func (f *JobFlags) Load(path string, settings agent.Settings, w base.Environment) (*LoadedJob, error) {
	loaded, err := f.Read(path, w)
	if err != nil {
		return nil, err
	}
	return loaded, loaded.Choose(path, f.Group, settings, w)
}

// Choose chooses the group to run, and reviews the job as Load does. path is the job file's.
func (l *LoadedJob) Choose(path, named string, settings agent.Settings, w base.Environment) error {
	group, findings, err := settings.Review(l.Job, named)
	if errors.Is(err, review.ErrGroupNotNamed) {
		err = fmt.Errorf("%w; choose it with --group", err)
	}
	if err != nil {
		return base.Usagef("%s: %w", FileName(path), l.Hide(err))
	}
	l.Group = group
	return l.errRefused(path, l.PrintFindings(w.Stderr, findings))
}

// ChooseAll reviews every group of the job, as Choose does one, and returns them. All allocations of each are to run.
func (l *LoadedJob) ChooseAll(path string, settings agent.Settings, w base.Environment) ([]*api.TaskGroup, error) {
	groups, findings, err := settings.ReviewAll(l.Job)
	if err != nil {
		return nil, base.Usagef("%s: %w", FileName(path), l.Hide(err))
	}
	findings = slices.DeleteFunc(findings, func(f review.Finding) bool {
		return f.Severity == review.Note && f.Feature == review.CountFeature
	})
	return groups, l.errRefused(path, l.PrintFindings(w.Stderr, findings))
}

func (l *LoadedJob) errRefused(path string, refused int) error {
	if refused == 0 {
		return nil
	}
	return base.Usagef("%s can't run as it is: %d %s refused (see above); nothing was started or changed",
		FileName(path), refused, base.Plural(refused, "part is", "parts are"))
}

// PrintFindings prints the findings of a review with their lines in the job file, worst first as Review orders them. It
// masks the texts that the job has from files, and returns how many parts are refused.
func (s Source) PrintFindings(out io.Writer, findings []review.Finding) int {
	if len(findings) == 0 {
		return 0
	}
	places := jobspec.NewPlaces(s.text)
	refused := 0
	for _, f := range findings {
		if f.Severity == review.Refused {
			refused++
		}
		fmt.Fprintln(out, linewriter.OneLine(s.FromFiles.Mask(f.At(placeOf(places, f)))))
	}
	return refused
}

// Place returns where the job file has what a finding is about, empty if that is unknown.
func (s Source) Place(f review.Finding) string { return placeOf(jobspec.NewPlaces(s.text), f) }

func placeOf(places jobspec.Places, f review.Finding) string {
	return places.Of(f.Where, strings.TrimSpace(f.Feature+" "+f.Argument))
}
