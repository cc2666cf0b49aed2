// Package builtin lists the task drivers of this program. A new driver is a package beside this one and a row here.
package builtin

import (
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/rawexec"
)

// Drivers are the task drivers that a job may name unless another registry is given.
var Drivers = drivers.NewRegistry(
	rawexec.Driver{},
)
