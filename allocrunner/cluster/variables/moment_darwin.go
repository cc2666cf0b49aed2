package variables

import (
	"sync"

	"golang.org/x/sys/unix"
)

// bootID returns the kernel's name for this start of the machine.
var bootID = sync.OnceValues(func() (string, error) { return unix.Sysctl("kern.bootsessionuuid") })
