package jobs

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
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// History keeps the latest versions of the allocation's job. What it returns is shared and not changed.
type History interface {
	// Versions returns the versions that are kept, the present one first.
	Versions() []Version
	// Compare returns the changes from an earlier version to a later one.
	Compare(earlier, later *api.Job) []jobdiff.Change
}

// Version is one version of a job, with the text that it was made from; nil when that is not known.
type Version struct {
	Job        *api.Job
	Submission *api.JobSubmission
}

func (v Version) number() uint64 { return ptr.Deref(v.Job.Version) }

// kept returns the versions of the job of the caller's allocation as the caller may see them, the present one first.
func (h *handlers) kept(r *route.Request, current *api.Allocation) []Version {
	if h.History == nil {
		return []Version{{Job: current.Job}}
	}
	versions := slices.Clone(h.History.Versions())
	for i := range versions {
		versions[i].Job = route.ShownJob(r.Principal, versions[i].Job)
	}
	return versions
}

// versions answers GET /v1/job/:job/versions, the latest first. diffs=true adds the changes of each from the version
// before it, or, with diff_version=N, from that one.
func (h *handlers) versions(ctx context.Context, r *route.Request) (route.Answer, error) {
	query := r.Query()
	with, err := versionOf(query, "diff_version")
	if err != nil {
		return route.Answer{}, err
	}
	if query.Get("diff_tag") != "" {
		return route.Answer{}, route.Invalid("diff_tag names no version: versions have no tags here; use diff_version")
	}
	current, err := r.OwnJob(ctx)
	if err != nil {
		return route.Answer{}, apierror.Reword(err, apierror.NoJob, apierror.NoVersions)
	}
	if err := r.EnterMaking(ctx); err != nil { // several versions may be megabytes
		return route.Answer{}, err
	}
	versions := h.kept(r, current)
	response := wireVersions{Versions: []*wire.Job{}, Meta: wire.Meta{Index: current.ModifyIndex, KnownLeader: true}}
	for i, v := range versions {
		job := *v.Job
		if i == 0 {
			job = *wire.JobNow(current)
			job.SubmitTime = cmp.Or(v.Job.SubmitTime, job.SubmitTime)
		}
		// nomad job history needs these.
		job.SubmitTime, job.Stable = cmp.Or(job.SubmitTime, new(int64)), cmp.Or(job.Stable, new(bool))
		job.Version = cmp.Or(job.Version, new(uint64))
		response.Versions = append(response.Versions, wire.JobOf(&job))
	}
	if r.Flag("diffs", false) {
		if response.Diffs, err = h.diffs(versions, current, with); err != nil {
			return route.Answer{}, err
		}
	}
	return route.Indexed(response, current.ModifyIndex)
}

type wireVersions struct {
	Versions []*wire.Job
	Diffs    []*api.JobDiff
	wire.Meta
}

// diffs returns the changes of each version from the one before it, or from the one with the number with. The oldest
// version has none before it.
func (h *handlers) diffs(versions []Version, current *api.Allocation, with *uint64) ([]*api.JobDiff, error) {
	var diffs []*api.JobDiff
	if h.History == nil {
		return diffs, nil
	}
	base := -1
	if with != nil {
		if base = slices.IndexFunc(versions, func(v Version) bool { return v.number() == *with }); base < 0 {
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
		diffs = append(diffs, jobDiffOf(current, h.History.Compare(versions[earlier].Job, v.Job)))
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
		return nil, route.Invalid("%s must be the number of a version, not %s", name, route.Clip(text))
	}
	return &number, nil
}

// submission answers GET /v1/job/:job/submission: the text of a version, with version=N, or of the present one.
func (h *handlers) submission(ctx context.Context, r *route.Request) (route.Answer, error) {
	query := r.Query()
	want, err := versionOf(query, "version")
	if err != nil {
		return route.Answer{}, err
	}
	current, err := r.OwnJob(ctx)
	if err != nil {
		return route.Answer{}, apierror.Reword(err, apierror.NoJob, apierror.NoSubmission)
	}
	for i, v := range h.kept(r, current) {
		if (want == nil && i == 0 || want != nil && v.number() == *want) && v.Submission != nil {
			return route.Indexed(wireSubmission{
				v.Submission, current.Namespace, current.JobID, v.number(), ptr.Deref(v.Job.JobModifyIndex),
			}, current.ModifyIndex)
		}
	}
	return route.Answer{}, apierror.New(apierror.NoSubmission)
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
func (h *handlers) revert(ctx context.Context, r *route.Request, want *api.JobRevertRequest) (route.Answer, error) {
	if want.JobID != "" && want.JobID != r.Param("job") {
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	}
	current, err := r.OwnJob(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	versions := h.kept(r, current)
	found := slices.IndexFunc(versions, func(v Version) bool { return v.number() == want.JobVersion })
	switch {
	case found == 0:
		return route.Answer{}, route.Invalid("can't revert to version %d: it is the present one", want.JobVersion)
	case found < 0:
		return route.Answer{}, apierror.New(apierror.NoVersion, r.Param("job"), want.JobVersion)
	}
	job := *versions[found].Job
	job.SubmitTime = nil // it is submitted now
	return h.registerAs(ctx, r, &job, versions[found].Submission, func() error {
		now, prior := ptr.Deref(jobOf(r).Version), want.EnforcePriorVersion
		if prior != nil && now != *prior {
			why := fmt.Sprintf("Current job has version %d; enforcing version %d", now, *prior)
			return apierror.New(apierror.Conflict, why)
		}
		return nil
	})
}
