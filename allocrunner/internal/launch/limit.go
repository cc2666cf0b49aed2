package launch

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// limit is the result of openFilesLimit, once it is known.
var limit struct {
	sync.Mutex
	known bool
	unix.Rlimit
}

// openFilesLimit returns the limit of open files that this program was started with, which its programs must have, too.
// Where the limit can't be found out now, it returns this program's own, and the next call tries again.
func openFilesLimit() unix.Rlimit {
	limit.Lock()
	defer limit.Unlock()
	if !limit.known {
		var err error
		limit.Rlimit, err = findLimit()
		limit.known = err == nil
	}
	return limit.Rlimit
}

// findLimit finds the limit of open files. Package syscall has raised this program's limit, restores the limit only for
// programs that it executes itself, and does not tell the old value. So findLimit reads the limit of such a process:
// this program, executed again and killed at once. If that process has raised its limit already, findLimit tries
// another one.
func findLimit() (ours unix.Rlimit, err error) {
	err = unix.Getrlimit(unix.RLIMIT_NOFILE, &ours)
	for range 20 {
		if err != nil || ours.Cur != ours.Max-1 {
			break
		}
		var its unix.Rlimit
		var p *os.Process
		if p, err = os.StartProcess(exe, []string{Name}, &os.ProcAttr{}); err == nil {
			err = unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, nil, &its)
			_ = p.Kill()
			_, _ = p.Wait()
		}
		if err == nil && its != ours {
			return its, nil
		}
	}
	return ours, err
}
