package review

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
)

var parentLimits = []limit[api.Job]{
	{"type", `it must be "batch" or "sysbatch" for a job that is parameterized or periodic`, nil,
		func(j *api.Job) bool {
			return ptr.Deref(j.Type) == api.JobTypeBatch || ptr.Deref(j.Type) == api.JobTypeSysbatch
		}},
}

var parameterizedLimits = []limit[api.ParameterizedJobConfig]{
	among[api.ParameterizedJobConfig]("parameterized payload", "", "optional", "required", "forbidden"),
	{"parameterized meta_optional", "it must have no key that is in meta_required", nil,
		func(p *api.ParameterizedJobConfig) bool {
			return !slices.ContainsFunc(p.MetaOptional, func(key string) bool { return slices.Contains(p.MetaRequired, key) })
		}},
}

const parameterizedAlone = "it can't stand beside periodic"

var periodicRows = []row[api.PeriodicConfig]{
	{"periodic enabled", Warning, "the schedule is off, so nothing starts the job",
		func(p *api.PeriodicConfig) bool { return p.Enabled != nil && !*p.Enabled }},
}

var periodicLimits = []limit[api.PeriodicConfig]{
	{"periodic crons", "either it, or cron, must be there, and not both",
		func(p *api.PeriodicConfig) any { return p.Specs },
		func(p *api.PeriodicConfig) bool { return (ptr.Deref(p.Spec) == "") != (len(p.Specs) == 0) }},
	{"periodic cron", "it must be a cron expression such as \"*/15 * * * *\" or \"@daily\"", nil,
		func(p *api.PeriodicConfig) bool { return ptr.Deref(p.Spec) == "" || isCron(*p.Spec) }},
	{"periodic crons", "each must be a cron expression such as \"*/15 * * * *\" or \"@daily\"",
		func(p *api.PeriodicConfig) any { return p.Specs },
		func(p *api.PeriodicConfig) bool {
			return !slices.ContainsFunc(p.Specs, func(spec string) bool { return !isCron(spec) })
		}},
	{"periodic time_zone", "it must be a time zone that this machine knows, such as \"Europe/Berlin\"; the package " +
		"tzdata has them", nil,
		func(p *api.PeriodicConfig) bool { _, err := p.GetLocation(); return err == nil }},
	{"periodic spec_type", `it must be "cron"`, func(p *api.PeriodicConfig) any { return ptr.Deref(p.SpecType) },
		func(p *api.PeriodicConfig) bool { return p.SpecType == nil || *p.SpecType == api.PeriodicSpecCron }},
}

// isCron reports whether a text is a cron expression.
func isCron(spec string) bool {
	kind := api.PeriodicSpecCron
	_, err := (&api.PeriodicConfig{Spec: &spec, SpecType: &kind}).Next(time.Unix(0, 0).UTC())
	return err == nil
}

var dispatchPayloadLimits = []limit[api.DispatchPayloadConfig]{
	{"dispatch_payload file", "it must name a file in the task's local directory, to which it is relative", nil,
		func(d *api.DispatchPayloadConfig) bool {
			return filepath.IsLocal(d.File) && filepath.Clean(d.File) != "."
		}},
}

var dispatchPayloadRows = []row[api.Task]{
	{"dispatch_payload", Note, "the job has no payload, so there is no such file", nil},
}

func (r *reviewer) parent() {
	if interfaces.IsParent(r.job) {
		restrict(r, parentLimits, r.job)
	}
	if r.job.Periodic != nil {
		apply(r, periodicRows, r.job.Periodic)
	}
	restrict(r, periodicLimits, r.job.Periodic)
	if p := r.job.ParameterizedJob; p != nil {
		if r.job.Periodic != nil {
			r.refuse("parameterized", "%s", parameterizedAlone)
		}
		restrict(r, parameterizedLimits, p)
		r.environment("parameterized meta", asMeta(p))
	}
}

func asMeta(p *api.ParameterizedJobConfig) map[string]string {
	meta := map[string]string{}
	for _, key := range slices.Concat(p.MetaRequired, p.MetaOptional) {
		meta[key] = ""
	}
	return meta
}

func (r *reviewer) dispatchPayload(t *api.Task) {
	restrict(r, dispatchPayloadLimits, t.DispatchPayload)
	if !r.job.Dispatched && !r.job.IsParameterized() {
		apply(r, dispatchPayloadRows, t)
	}
}

// checkJobName is checkName for the name of a job. That of a child has its parent's before a slash.
func (r *reviewer) checkJobName() {
	name := ptr.Deref(r.job.ID)
	if parent := ptr.Deref(r.job.ParentID); parent != "" {
		if own, ok := strings.CutPrefix(name, parent+"/"); ok {
			r.checkName("job", parent)
			name = own
		}
	}
	r.checkName("job", name)
	if strings.Contains(name, " ") {
		r.refuse("job name", "the ID %q has a space in it, which Nomad takes in no job's ID; use another character", name)
	}
}
