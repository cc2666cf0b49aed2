package review

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/schedule"
)

func (r *reviewer) schedule(t *api.Task) {
	if t.Schedule == nil {
		return
	}
	if _, err := schedule.Parse(t.Schedule); err != nil {
		r.refuse("schedule", "%v", err)
	}
	if lifecycle.Of(t).Hook == lifecycle.Poststop {
		r.refuse("schedule", "a poststop task runs when the others have ended, whatever the time; leave the block out")
	}
}
