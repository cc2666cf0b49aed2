package fetch

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
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

const (
	readRights  = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSReadDir
	fileRights  = ll.AccessFSExecute | ll.AccessFSReadFile
	writeRights = readRights | ll.AccessFSWriteFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir |
		ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym | ll.AccessFSRefer |
		ll.AccessFSTruncate
	// specials are never allowed.
	specials = ll.AccessFSMakeChar | ll.AccessFSMakeBlock
)

// LandlockVersion returns the version of the kernel's Landlock; 0 for a kernel without it, or one that has it switched
// off.
func LandlockVersion() int {
	version, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return version
}

// confine gives up the rights of this process, and executes the program again, so that all of its threads are confined.
// It returns only errors.
func confine(spec string) error {
	var s sandbox
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return err
	}
	size := uint64(max(s.Size, 0)) + 1<<20 //nolint:gosec // not negative
	if err := limits.Set(map[int]uint64{unix.RLIMIT_NOFILE: 1024, unix.RLIMIT_FSIZE: size}); err != nil {
		return err
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

// landlock confines this process to the files of the sandbox, as far as the kernel can.
func (s sandbox) landlock() error {
	write := landlock.AccessFSSet(writeRights)
	if LandlockVersion() == 1 {
		write &^= ll.AccessFSRefer // which would let the library confine nothing
	}
	var rules []landlock.Rule
	for _, path := range append(s.Read, systemFiles...) {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			rules = append(rules, landlock.PathAccess(readRights, path))
		} else if err == nil { // otherwise it can't be read: many systems lack some of them
			rules = append(rules, landlock.PathAccess(fileRights, path))
		}
	}
	config := landlock.Config{HandledAccessFS: write | specials, Scoped: ll.ScopeAbstractUnixSocket | ll.ScopeSignal}
	return config.BestEffort().Restrict(append(rules,
		landlock.PathAccess(fileRights, exe),
		landlock.PathAccess(fileRights|ll.AccessFSWriteFile, "/dev/null"),
		landlock.PathAccess(write, s.Write...))...)
}
