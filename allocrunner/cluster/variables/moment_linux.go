package variables

import "taskapi/internal/proc"

// bootID returns the kernel's name for this start of the machine.
var bootID = proc.BootID
