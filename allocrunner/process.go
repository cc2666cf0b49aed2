package allocrunner

import "taskapi/allocrunner/internal/proc"

// Process is a process as people know it: whose rights it has, since when it runs, and its arguments.
type Process = proc.Description

// DescribeProcess describes a process of this machine. The error is ENOENT or ESRCH when there is none.
func DescribeProcess(pid int) (Process, error) { return proc.Describe(pid) }
