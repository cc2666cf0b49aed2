package launch

import (
	"bytes"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A step of the process on its way to the program, as a failure names it.
type step byte

const (
	prepare step = iota + 1
	changeUser
	enterDir
	execute
)

// child holds everything that the process needs between fork and exec: numbers, and addresses of texts that end with a
// NUL or have their length beside them.
type child struct {
	clone        cloneArgs
	groups1      [3]uintptr // files of cgroups of version 1, to write zero into
	groups1Len   int
	zero         byte
	joins        bool  // the process enters the cgroup itself
	procsFile    *byte // of a cgroup, relative to its directory
	files        [3]uintptr
	conn         uintptr
	connAt       uintptr // where conn is to be
	listen       [MaxListen]uintptr
	listenLen    int
	pid          *[pidDigits]byte // in the environment, for the digits of the process's number; nil for none
	tty          bool
	limit        unix.Rlimit // of open files
	oomFile      *byte
	oomScoreAdj  *byte // nil: unchanged
	oomLength    uintptr
	parent       uintptr
	user         *User // nil: as we are
	groups       *uint32
	netBind      bool // capabilities are set and CAP_NET_BIND_SERVICE is kept
	capHeader    unix.CapUserHeader
	capabilities [2]unix.CapUserData // before the execution; only CAP_NET_BIND_SERVICE outlives that
	dir, path    *byte
	argv, envv   **byte

	// the explaining program, its arguments, and the argument whose one byte is the errno; no environment
	explainer     *byte
	explainerArgv **byte
	explainedErr  *byte
	explainerEnvv **byte
}

// cloneArgs is struct clone_args of the kernel, in its second version.
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// newChild makes a child of the program, for a process whose end of the connection is conn.
func newChild(p Program, conn *os.File) (*child, error) {
	c := &child{conn: conn.Fd(), connAt: uintptr(connFD + len(p.Listen)), tty: p.TTY, parent: uintptr(os.Getpid()),
		user: p.User, listenLen: len(p.Listen)}
	for i, f := range p.Files {
		c.files[i] = f.Fd()
	}
	for i, f := range p.Listen {
		c.listen[i] = f.Fd()
	}
	if p.User != nil && len(p.User.Groups) > 0 {
		c.groups = &p.User.Groups[0]
	}
	if p.NetBindService {
		c.keepNetBind()
	}
	var err error
	text := func(s string) *byte {
		b, e := syscall.BytePtrFromString(s)
		if e != nil {
			err = e
		}
		return b
	}
	list := func(strings ...string) []*byte {
		l, e := syscall.SlicePtrFromStrings(strings)
		if e != nil {
			err, l = e, make([]*byte, len(strings)+1)
		}
		return l
	}
	if score := p.OOMScoreAdj; score != 0 || isProtected() {
		digits := strconv.Itoa(score)
		c.oomFile, c.oomScoreAdj, c.oomLength = text("/proc/self/oom_score_adj"), text(digits), uintptr(len(digits))
	}
	c.procsFile = text("cgroup.procs")
	env := list(p.Env...)
	if i := slices.Index(p.Env, PIDEnv); i >= 0 && len(p.Listen) > 0 {
		entry := make([]byte, len(PIDEnv)+pidDigits+1) // ends with a NUL, wherever the digits end
		copy(entry, PIDEnv)
		c.pid, env[i] = (*[pidDigits]byte)(entry[len(PIDEnv):]), &entry[0]
	}
	c.dir, c.path, c.argv, c.envv = text(p.Dir), text(p.Path), &list(p.Args...)[0], &env[0]
	argv := list(Name, " ", p.Path, p.Dir, p.Name)
	c.explainer, c.explainerArgv, c.explainedErr, c.explainerEnvv = text(exe), &argv[0], argv[1], &list()[0]
	return c, err
}

// isProtected reports whether the kernel's search for a victim spares this program, as a unit's OOMScoreAdjust= may
// have it.
func isProtected() bool {
	score, _ := os.ReadFile("/proc/self/oom_score_adj")
	return bytes.HasPrefix(score, []byte("-"))
}

// pidDigits is more than a process number has.
const pidDigits = 20

const netBindBit = 1 << unix.CAP_NET_BIND_SERVICE

// keepNetBind prepares the capabilities of a process that keeps CAP_NET_BIND_SERVICE. One that becomes another user has
// no other from then on; one of our user has ours until the execution.
func (c *child) keepNetBind() {
	c.netBind, c.capHeader.Version = true, unix.LINUX_CAPABILITY_VERSION_3
	first := &c.capabilities[0]
	if c.user != nil {
		first.Effective, first.Permitted = netBindBit, netBindBit
	} else if unix.Capget(&c.capHeader, first) != nil {
		c.netBind = false
	}
	first.Inheritable |= netBindBit
}

// fork makes the process, in the cgroup if that is a descriptor, not -1. In the process it does not return.
//
// The process is a copy of this program with one thread, in which Go's runtime does not run. So until the execution it
// may only make system calls. It makes them in functions that neither grow the stack nor allocate, like those of
// package syscall between fork and exec. It can't be preempted, since all signals are blocked. Package syscall's fork
// can't be used: with it, this program would wait for the execution and the working directory, and both may hang.
//
//go:norace
//go:nosplit
func (c *child) fork(cgroup int) (pid uintptr, errno syscall.Errno) {
	all, before := ^uint64(0), uint64(0)
	setSignalMask(&all, &before)
	c.joins = false
	if cgroup < 0 {
		pid, _, errno = syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	} else {
		c.clone = cloneArgs{flags: unix.CLONE_INTO_CGROUP, exitSignal: uint64(syscall.SIGCHLD), cgroup: uint64(cgroup)}
		pid, _, errno = syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&c.clone)), unsafe.Sizeof(c.clone), 0)
		// A filter can't read the arguments of clone3, so systemd's RestrictNamespaces refuses every call.
		if c.joins = errno == syscall.ENOSYS; c.joins {
			pid, _, errno = syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		}
	}
	if errno == 0 && pid == 0 {
		c.run()
	}
	setSignalMask(&before, nil)
	return pid, errno
}

//go:norace
//go:nosplit
func setSignalMask(mask, before *uint64) {
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(mask)),
		uintptr(unsafe.Pointer(before)), unsafe.Sizeof(*mask), 0, 0)
}

// run executes the program. If it can't, it reports that and executes the explaining program. It never returns.
//
//go:norace
//go:nosplit
func (c *child) run() {
	at, errno := c.become()
	failure := [2]byte{byte(at), byte(errno)}
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, c.conn, uintptr(unsafe.Pointer(&failure)), unsafe.Sizeof(failure))
	if at == execute && errno == unix.ENOENT || at >= enterDir && errno == unix.EACCES {
		*c.explainedErr = byte(errno)
		if c.conn == connFD {
			_, _, _ = syscall.RawSyscall(syscall.SYS_FCNTL, connFD, syscall.F_SETFD, 0)
		} else {
			_, _, _ = syscall.RawSyscall(syscall.SYS_DUP3, c.conn, connFD, 0)
			_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, connFD+1, math.MaxUint32, 0)
		}
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(c.explainer)),
			uintptr(unsafe.Pointer(c.explainerArgv)), uintptr(unsafe.Pointer(c.explainerEnvv)))
	}
	for {
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, exitCode, 0, 0)
	}
}

// join enters the cgroup, if clone3 could not do it. It is no part of become, whose frame counts for what become calls:
// functions like these have 792 bytes of stack in all.
//
//go:norace
//go:nosplit
func (c *child) join() syscall.Errno {
	if !c.joins {
		return 0
	}
	fd, _, errno := syscall.RawSyscall6(syscall.SYS_OPENAT, uintptr(c.clone.cgroup), uintptr(unsafe.Pointer(c.procsFile)),
		syscall.O_WRONLY|syscall.O_CLOEXEC, 0, 0, 0)
	if errno == 0 {
		this := byte('0')
		_, _, errno = syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&this)), 1)
		_, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
	}
	return errno
}

// move gives the connection and the sockets their numbers, and writes the process's number into its environment. The
// memory is the process's own copy.
//
//go:norace
//go:nosplit
func (c *child) move() syscall.Errno {
	if c.conn != c.connAt {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_DUP3, c.conn, c.connAt, syscall.O_CLOEXEC); errno != 0 {
			return errno
		}
		c.conn = c.connAt
	}
	for i := range c.listenLen {
		_, _, errno := syscall.RawSyscall(syscall.SYS_DUP3, c.listen[i], uintptr(connFD+i), 0)
		if errno != 0 {
			return errno
		}
	}
	if c.pid != nil {
		pid, _, _ := syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
		n := 0
		for left := pid; left > 0 && n < pidDigits; left /= 10 {
			n++
		}
		for ; n > 0; n-- {
			c.pid[n-1] = byte('0' + pid%10)
			pid /= 10
		}
	}
	// Nothing of ours shall stay open while a file system hangs. Before Linux 5.9, the execution closes it.
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, c.connAt+1, math.MaxUint32, 0)
	return 0
}

// become returns only if it can't execute the program. It ignores the results of steps that can't fail.
//
//go:norace
//go:nosplit
func (c *child) become() (at step, errno syscall.Errno) {
	if errno = c.join(); errno != 0 {
		return prepare, errno
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	for i := range c.groups1Len {
		_, _, errno = syscall.RawSyscall(syscall.SYS_WRITE, c.groups1[i], uintptr(unsafe.Pointer(&c.zero)), 1)
		if errno != 0 && errno != syscall.EINVAL { // which a real-time process gets for a weight of CPU time
			return prepare, errno
		}
	}
	for i := range uintptr(len(c.files)) {
		if c.files[i] == i {
			continue
		}
		if _, _, errno = syscall.RawSyscall(syscall.SYS_DUP3, c.files[i], i, 0); errno != 0 {
			return prepare, errno
		}
	}
	if errno = c.move(); errno != 0 {
		return prepare, errno
	}
	if c.tty {
		if _, _, errno = syscall.RawSyscall(syscall.SYS_IOCTL, 0, syscall.TIOCSCTTY, 1); errno != 0 {
			return prepare, errno
		}
	}
	if c.oomScoreAdj != nil { // the program runs also when that is refused
		if fd, _, failed := syscall.RawSyscall6(syscall.SYS_OPENAT, 0, uintptr(unsafe.Pointer(c.oomFile)),
			syscall.O_WRONLY|syscall.O_CLOEXEC, 0, 0, 0); failed == 0 {
			_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(c.oomScoreAdj)), c.oomLength)
			_, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
		}
	}
	_, _, errno = syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, syscall.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&c.limit)),
		0, 0, 0)
	if errno != 0 {
		return prepare, errno
	}
	// The program gets a session keyring of its own: the one that it inherits may hold keys of the user who started
	// taskapi. A kernel that refuses a new keyring gives the program no keys either.
	_, _, _ = syscall.RawSyscall(syscall.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
	if c.user != nil {
		if c.netBind { // until the execution
			_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0)
		}
		_, _, errno = syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(c.user.Groups)),
			uintptr(unsafe.Pointer(c.groups)), 0)
		if errno == 0 {
			_, _, errno = syscall.RawSyscall(syscall.SYS_SETGID, uintptr(c.user.GID), 0, 0)
		}
		if errno == 0 {
			_, _, errno = syscall.RawSyscall(syscall.SYS_SETUID, uintptr(c.user.UID), 0, 0)
		}
		if errno != 0 {
			return changeUser, errno
		}
	}
	// With an ambient capability of ours, such as CAP_SETUID, the program could become anybody.
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0)
	if c.netBind { // the program runs also when that is refused: the execution takes all that is not ambient
		_, _, _ = syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&c.capHeader)),
			uintptr(unsafe.Pointer(&c.capabilities)), 0)
		_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE,
			unix.CAP_NET_BIND_SERVICE, 0, 0, 0)
	}
	// Neither before, for the change of the user undoes both. Until the execution, a core dump would show the user our
	// memory.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0)
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0)
	if parent, _, _ := syscall.RawSyscall(syscall.SYS_GETPPID, 0, 0, 0); parent != c.parent { // it died before that
		self, _, _ := syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
		_, _, _ = syscall.RawSyscall(syscall.SYS_KILL, self, uintptr(syscall.SIGKILL), 0)
	}
	c.inheritNothing()
	if _, _, errno = syscall.RawSyscall(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0); errno != 0 {
		return enterDir, errno
	}
	word := byte(about)
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, c.connAt, uintptr(unsafe.Pointer(&word)), 1)
	_, _, errno = syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(c.argv)),
		uintptr(unsafe.Pointer(c.envv)))
	return execute, errno
}

// umask is the file mode mask of every program, whatever mask this program was started with.
const umask = 0o022

// lastSignal is the highest number of a signal.
const lastSignal = 64

// inheritNothing sets the file mode mask, gives each signal its default action, and unblocks all. The execution does so
// for signals that are caught, but those that were ignored at the start of the keeper (by nohup, or a shell's
// background job) would stay ignored.
//
//go:norace
//go:nosplit
func (c *child) inheritNothing() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_UMASK, umask, 0, 0)
	// struct sigaction of the kernel on 64-bit machines: SIG_DFL is 0, as are its flags and mask
	var action [4]uint64
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&action)), 0,
			unsafe.Sizeof(action[3]), 0, 0)
	}
	var none uint64
	setSignalMask(&none, nil)
}

// Fork makes the process, in the cgroup whose directory is open, or in this program's when that is nil. The process
// enters up to two cgroups of version 1, whose files tasks are open, and gets SIGKILL when the calling thread ends.
func (l *Launch) Fork(cgroup *os.File, tasks ...*os.File) (*os.Process, error) {
	runtime.LockOSThread() // its mask of signals changes
	defer runtime.UnlockOSThread()
	fd := -1
	if cgroup != nil {
		fd = int(cgroup.Fd())
	}
	l.process.limit, l.process.zero = openFilesLimit(), '0'
	for i, f := range tasks {
		l.process.groups1[i], l.process.groups1Len = f.Fd(), i+1
	}
	syscall.ForkLock.Lock()
	pid, errno := l.process.fork(fd)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(cgroup)
	runtime.KeepAlive(tasks)
	runtime.KeepAlive(l)
	if errno != 0 {
		return nil, os.NewSyscallError("clone", errno)
	}
	return os.FindProcess(int(pid)) // it can't have another's number before this program has waited for it
}
