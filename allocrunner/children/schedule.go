package children

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/schedule"
	"taskapi/internal/ptr"
)

// times are when a periodic job starts children.
type times struct {
	specs    []string
	location *time.Location
}

// scheduleOf returns the schedule of a job. It is empty for a job without a schedule, or whose schedule is off.
func scheduleOf(job *api.Job) (times, error) {
	p := job.Periodic
	if !hasSchedule(job) {
		return times{}, nil
	}
	location, err := p.GetLocation()
	if err != nil {
		return times{}, err
	}
	specs := p.Specs
	if spec := ptr.Deref(p.Spec); spec != "" {
		specs = []string{spec}
	}
	s := times{specs, location}
	_, err = s.next(time.Unix(0, 0))
	return s, err
}

// hasSchedule reports whether a job is periodic and its schedule is on.
func hasSchedule(job *api.Job) bool {
	return job.IsPeriodic() && (job.Periodic.Enabled == nil || *job.Periodic.Enabled)
}

// next returns the first time of the schedule after t; zero for none. Errors: wrong cron expressions.
func (s times) next(t time.Time) (first time.Time, err error) {
	for _, spec := range s.specs {
		at, err := schedule.NextCron(spec, t.In(s.location))
		if err != nil {
			return time.Time{}, err
		}
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first, nil
}

// mostMissed bounds the steps through missed times. Of more missed times, the latest may not be found.
const mostMissed = 10_000

// due returns the latest time of the schedule that is after since and not after now, zero for none, and the first time
// after now.
func (s times) due(since, now time.Time) (latest, next time.Time) {
	next, _ = s.next(since) // scheduleOf has tried it
	for i := 0; !next.IsZero() && !next.After(now) && i < mostMissed; i++ {
		latest = next
		next, _ = s.next(next)
	}
	if !next.IsZero() && !next.After(now) {
		next, _ = s.next(now)
	}
	return latest, next
}
