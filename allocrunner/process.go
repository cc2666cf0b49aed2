package allocrunner

import (
	"taskapi/allocrunner/internal/stats"
	"taskapi/internal/proc"
)

// MostPIDs is how many processes of a task Stats lists, those that use most; all of them are in its sums.
const MostPIDs = stats.MostPIDs

// Process is a process as people know it: whose rights it has, since when it runs, and its arguments.
type Process = proc.Description

// DescribeProcess describes a process of this machine. The error is ENOENT or ESRCH when there is none.
func DescribeProcess(pid int) (Process, error) { return proc.Describe(pid) }
