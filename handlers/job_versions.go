package handlers

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/handlers/apierror"
)

// History keeps the latest versions of the allocation's job. What it returns is shared and not changed.
type History interface {
	// Versions returns the versions that are kept, the present one first.
	Versions() []JobVersion
	// Compare returns what a version changes of an earlier one.
	Compare(earlier, later *api.Job) []jobdiff.Change
}

// JobVersion is one version of a job, with the text that it was made from; nil when that is not known.
type JobVersion struct {
	Job        *api.Job
	Submission *api.JobSubmission
}

// number returns the version's number.
func (v JobVersion) number() uint64 { return valueOf(v.Job.Version) }

// versions returns the versions of the caller's job as it is shown them, the present one first. missing is the error
// about another job.
func (a *API) versions(ctx context.Context, r *request, missing apierror.Kind) ([]JobVersion, *api.Allocation, error) {
	current, err := a.ownJob(ctx, r)
	if err != nil {
		return nil, nil, apierror.Reword(err, apierror.NoJob, missing)
	}
	if a.config.History == nil {
		return []JobVersion{{Job: current.Job}}, current, nil
	}
	versions := slices.Clone(a.config.History.Versions())
	for i := range versions {
		versions[i].Job = shownJob(r.Principal, versions[i].Job)
	}
	return versions, current, nil
}

// jobVersions answers GET /v1/job/:job/versions, the latest first. diffs=true adds what each changes of the one before it, or, with
// diff_version=N, of that one.
func (a *API) jobVersions(ctx context.Context, r *request) (answer, error) {
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	diffs, err := flag(query, "diffs", false)
	if err != nil {
		return answer{}, err
	}
	with, err := versionOf(query, "diff_version")
	if err != nil {
		return answer{}, err
	}
	if query.Get("diff_tag") != "" {
		return answer{}, invalid("diff_tag names no version: versions have no tags here; use diff_version")
	}
	versions, current, err := a.versions(ctx, r, apierror.NoVersions)
	if err != nil {
		return answer{}, err
	}
	response := wireVersions{Versions: []*wireJob{}, wireMeta: wireMeta{Index: current.ModifyIndex, KnownLeader: true}}
	for i, v := range versions {
		job := *v.Job
		if i == 0 {
			job = *jobNow(current)
			job.SubmitTime = cmp.Or(v.Job.SubmitTime, job.SubmitTime)
		}
		// nomad job history needs these.
		job.SubmitTime, job.Stable, job.Version = cmp.Or(job.SubmitTime, new(int64)), cmp.Or(job.Stable, new(bool)), cmp.Or(job.Version, new(uint64))
		response.Versions = append(response.Versions, wireJobOf(&job))
	}
	if diffs {
		if response.Diffs, err = a.diffs(versions, current, with); err != nil {
			return answer{}, err
		}
	}
	encoded, err := encode(response)
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// wireVersions is Nomad's answer.
type wireVersions struct {
	Versions []*wireJob
	Diffs    []*api.JobDiff
	wireMeta
}

// diffs returns what each version changes of the one before it, or of the one with the number with; the oldest has none before it.
func (a *API) diffs(versions []JobVersion, current *api.Allocation, with *uint64) ([]*api.JobDiff, error) {
	var diffs []*api.JobDiff
	if a.config.History == nil {
		return diffs, nil
	}
	base := -1
	if with != nil {
		if base = slices.IndexFunc(versions, func(v JobVersion) bool { return v.number() == *with }); base < 0 {
			return nil, apierror.New(apierror.NoVersions)
		}
	}
	for i, v := range versions {
		earlier := i + 1
		if base >= 0 {
			earlier = base
		}
		if earlier == len(versions) || earlier == i {
			continue
		}
		diffs = append(diffs, jobDiffOf(current, a.config.History.Compare(versions[earlier].Job, v.Job)))
	}
	return diffs, nil
}

// versionOf reads the number of a version; nil without one.
func versionOf(query url.Values, name string) (*uint64, error) {
	text := query.Get(name)
	if text == "" {
		return nil, nil
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, invalid("%s must be the number of a version, not %s", name, clip(text))
	}
	return &number, nil
}

// jobSubmission answers GET /v1/job/:job/submission: the text of a version, with version=N, or of the present one.
func (a *API) jobSubmission(ctx context.Context, r *request) (answer, error) {
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	want, err := versionOf(query, "version")
	if err != nil {
		return answer{}, err
	}
	versions, current, err := a.versions(ctx, r, apierror.NoSubmission)
	if err != nil {
		return answer{}, err
	}
	for i, v := range versions {
		if (want == nil && i == 0 || want != nil && v.number() == *want) && v.Submission != nil {
			encoded, err := encode(wireSubmission{v.Submission, current.Namespace, current.JobID, v.number(), valueOf(v.Job.JobModifyIndex)})
			return answer{body: encoded, index: current.ModifyIndex}, err
		}
	}
	return answer{}, apierror.New(apierror.NoSubmission)
}

// wireSubmission adds what Nomad's answer says of the version.
type wireSubmission struct {
	*api.JobSubmission
	Namespace      string
	JobID          string
	Version        uint64
	JobModifyIndex uint64
}

// revert answers PUT /v1/job/:job/revert: the allocation gets an earlier version of its job, as by a registration.
// force=false, which Nomad does not have, refuses changes that need new processes.
func (a *API) revert(ctx context.Context, r *request) (answer, error) {
	force, err := r.flag("force", true)
	if err != nil {
		return answer{}, err
	}
	var want api.JobRevertRequest
	switch err := r.decode(&want, false); {
	case err != nil:
		return answer{}, err
	case a.config.Jobs == nil:
		return answer{}, apierror.New(apierror.NoRoute)
	case want.JobID != "" && want.JobID != r.param("job"):
		return answer{}, apierror.New(apierror.JobMismatch)
	}
	versions, _, err := a.versions(ctx, r, apierror.NoJob)
	if err != nil {
		return answer{}, err
	}
	found := slices.IndexFunc(versions, func(v JobVersion) bool { return v.number() == want.JobVersion })
	switch {
	case found == 0:
		return answer{}, invalid("can't revert to version %d: it is the present one", want.JobVersion)
	case found < 0:
		return answer{}, apierror.New(apierror.NoVersion, r.param("job"), want.JobVersion)
	}
	job := *versions[found].Job
	job.SubmitTime = nil // it is submitted now
	return a.registerAs(ctx, r, registering{
		job: &job, submission: versions[found].Submission, force: force,
		first: func() error {
			if now := a.jobVersion(r); want.EnforcePriorVersion != nil && now != *want.EnforcePriorVersion {
				return apierror.New(apierror.Conflict, fmt.Sprintf("Current job has version %d; enforcing version %d", now, *want.EnforcePriorVersion))
			}
			return nil
		},
	})
}
