package launch

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// openFilesLimit returns the limit of open files that this program was started with, which its programs must have, too.
// Package syscall has raised this program's limit, restores the limit only for programs that it executes itself, and
// does not tell the old value. So openFilesLimit reads the limit of such a process: this program, executed again and
// killed at once. If that process has raised its limit already, openFilesLimit tries another one.
var openFilesLimit = sync.OnceValue(func() (ours unix.Rlimit) {
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &ours)
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
			return its
		}
	}
	return ours
})
