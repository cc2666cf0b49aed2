package launch

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// openFilesLimit returns the limit of open files that this program was started with, which its programs shall have,
// too. Package syscall has raised the limit of this program to one less than the most, and sets it back for what it
// executes itself, but tells nobody. So such a process is looked at: this program once more, which is killed as soon as
// it is executed. When it has raised its own limit already, another one is looked at.
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
