package interfaces

import (
	"errors"
	"time"
)

// ErrTenureLost: another machine runs the allocation instead of this one.
var ErrTenureLost = errors.New("another machine has taken the allocation over")

// Tenure is the right to run an allocation's tasks, which ends unless it is renewed in time. Until returns when it
// ends, as time since the start of the machine, and what is closed as soon as another end holds. At that time the tasks
// are killed, whatever has become of this process, and none starts before there is a later end. The end is
// zero before the tenure begins, and negative after the tenure is lost for good.
type Tenure interface {
	Until() (end time.Duration, changed <-chan struct{})
}
