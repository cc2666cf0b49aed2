package fetch

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sandbox is what a process keeps of its rights.
type sandbox struct {
	Write []string // directories
	Read  []string
	Size  int64 // of a file, in bytes
}

// systemFiles are what programs, name resolution and certificates need. Those that are missing are left out.
var systemFiles = []string{
	"/bin", "/sbin", "/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/run/current-system",
	"/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
	"/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services",
	"/etc/protocols", "/etc/passwd", "/etc/group", "/etc/localtime", "/etc/ssl", "/etc/pki", "/etc/ca-certificates",
	"/etc/crypto-policies", "/etc/gitconfig", "/etc/mercurial", "/etc/ssh/ssh_config", "/etc/ssh/ssh_config.d",
	"/etc/ssh/ssh_known_hosts", "/run/systemd/resolve", "/dev/zero", "/dev/random", "/dev/urandom", "/proc",
	"/sys/fs/cgroup", "/sys/kernel/mm",
}

// Rights of Landlock, by the version of its interface that has them first.
const (
	readRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	allRights1 = 1<<13 - 1 // up to LANDLOCK_ACCESS_FS_MAKE_SYM
	allRights2 = allRights1 | unix.LANDLOCK_ACCESS_FS_REFER
	allRights3 = allRights2 | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	// specials are never allowed: devices, pipes and sockets.
	specials   = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK
	fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// LandlockVersion returns the version of the kernel's Landlock; 0 for a kernel without it, or one that has it switched
// off.
func LandlockVersion() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// confine gives up the rights of this process, and executes the program again, so that all of its threads are confined.
// It returns only errors.
func confine(spec string) error {
	var s sandbox
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return err
	}
	for what, most := range map[int]uint64{
		unix.RLIMIT_CORE: 0, unix.RLIMIT_DATA: maxMemory, unix.RLIMIT_CPU: maxSeconds, unix.RLIMIT_NOFILE: 1024,
		unix.RLIMIT_FSIZE: uint64(max(s.Size, 0)) + 1<<20, //nolint:gosec // not negative
	} {
		var is unix.Rlimit
		if err := unix.Getrlimit(what, &is); err != nil {
			return os.NewSyscallError("getrlimit", err)
		}
		most = min(most, is.Max)
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	runtime.LockOSThread() // what follows holds for this thread, which executes the program
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if err := s.landlock(); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return os.NewSyscallError("execve", unix.Exec(exe, []string{exe, Command}, os.Environ()))
}

// dropCapabilities leaves even root only the rights of a file's owner: with no_new_privs, no program that is executed
// gets them back.
func dropCapabilities() error {
	var none [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return os.NewSyscallError("capset", unix.Capset(&header, &none[0]))
}

// landlock confines this thread to the files of the sandbox, where the kernel can.
func (s sandbox) landlock() error {
	version := LandlockVersion()
	if version == 0 {
		return nil
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: []uint64{allRights1, allRights2, allRights3}[min(version, 3)-1]}
	if version >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	size := unsafe.Offsetof(attr.Quiet_access_fs)
	if version < 6 {
		size = unsafe.Offsetof(attr.Scoped)
	}
	if version < 4 {
		size = unsafe.Offsetof(attr.Handled_access_net)
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return os.NewSyscallError("create", errno)
	}
	defer unix.Close(int(fd))
	allow := func(path string, rights uint64) error { return allow(int(fd), path, rights&attr.Handled_access_fs) }
	for _, path := range append(s.Read, systemFiles...) {
		_ = allow(path, readRights) // otherwise it can't be read: many systems lack some of them
	}
	if err := allow(exe, readRights); err != nil {
		return err
	}
	if err := allow("/dev/null", readRights|unix.LANDLOCK_ACCESS_FS_WRITE_FILE); err != nil {
		return err
	}
	for _, path := range s.Write {
		if err := allow(path, allRights3&^specials); err != nil {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return os.NewSyscallError("restrict", errno)
	}
	return nil
}

// allow adds a rule for a file, or for all below a directory.
func allow(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return &os.PathError{Op: "allow", Path: path, Err: errno}
	}
	return nil
}
