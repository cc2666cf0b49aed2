package variables

import (
	"time"

	"taskapi/internal/boottime"
)

// Moment is a time on a clock that all processes of a machine share, that nobody can set, and that goes on while the
// machine is suspended.
type Moment struct {
	Boot  string        // which start of which machine
	Since time.Duration // the time since then
}

// now returns the present moment of the machine's clock.
func now() (Moment, error) {
	boot, err := bootID()
	if err != nil {
		return Moment{}, err
	}
	return Moment{boot, boottime.Now()}, nil
}
