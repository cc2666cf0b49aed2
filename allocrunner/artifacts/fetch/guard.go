package fetch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Git, hg and ssh resolve names and follow servers themselves. So the kernel asks this process about each address that
// one of them connects to, or a program that they run (seccomp_unotify(2)). This process refuses what it refuses for
// HTTP. The programs are not hostile: none changes an address while this process looks at it.

// guardCommand is the argument behind Command with which the program is executed as a guarded one.
const guardCommand = "guard"

// guardSocket is the descriptor to which a guarded program sends the one that the kernel asks.
const guardSocket = 3

// guarded executes a program that connects to no address without permission. It returns only errors.
func guarded(path string, args []string) error {
	runtime.LockOSThread() // the filter holds for this thread, which executes the program
	listener, err := filterConnect()
	if err != nil {
		return fmt.Errorf("the kernel can't keep it from link-local addresses, which needs seccomp of Linux 5.5 or "+
			"later; use an archive by https instead: %w", err)
	}
	if err := unix.Sendmsg(guardSocket, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	unix.CloseOnExec(guardSocket)
	unix.CloseOnExec(listener)
	return os.NewSyscallError("execve", unix.Exec(path, append([]string{path}, args...), os.Environ()))
}

// auditArchs are the kernel's names of the systems that releases are for.
var auditArchs = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// filterConnect has the kernel ask about each connect(2) of this thread. It returns the descriptor for that.
func filterConnect() (listener int, err error) {
	arch, ok := auditArchs[runtime.GOARCH]
	if !ok {
		return 0, errors.ErrUnsupported
	}
	const (
		load      = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal     = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		answer    = unix.BPF_RET | unix.BPF_K
		number    = 0 // of the system call, in seccomp_data
		archPlace = 4
	)
	filter := []unix.SockFilter{
		{Code: load, K: archPlace},
		{Code: equal, Jt: 1, K: arch},
		{Code: answer, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: number},
		{Code: equal, Jf: 1, K: unix.SYS_CONNECT},
		{Code: answer, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return 0, os.NewSyscallError("seccomp", errno)
	}
	return int(fd), nil
}

// guard answers the kernel's questions about one guarded program.
type guard struct {
	socket  *os.File // this process's end
	done    *os.File // its end ends the answers
	working sync.WaitGroup
	refused error // the first refusal
}

// startGuarded starts a command as a guarded one.
func startGuarded(cmd *exec.Cmd) (*guard, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "guard"), os.NewFile(uintptr(pair[1]), "guarded")
	ended, done, err := os.Pipe()
	if err == nil {
		cmd.Args = append([]string{exe, Command, guardCommand, cmd.Path}, cmd.Args[1:]...)
		cmd.Path, cmd.ExtraFiles = exe, []*os.File{theirs}
		err = cmd.Start()
	}
	theirs.Close()
	if err != nil {
		ours.Close()
		ended.Close()
		done.Close()
		return nil, err
	}
	g := &guard{socket: ours, done: done}
	g.working.Go(func() {
		defer ended.Close()
		defer ours.Close()
		g.answer(int(ended.Fd()))
	})
	return g, nil
}

// end returns the first refusal. The program has ended.
func (g *guard) end() error {
	g.done.Close()
	g.working.Wait()
	return g.refused
}

// answer answers until the program and all that it runs have ended, or ended is closed. Then they connect no more.
func (g *guard) answer(ended int) {
	listener, err := g.listener()
	if err != nil {
		return // the program has ended, and says why
	}
	defer unix.Close(listener)
	for {
		fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}, {Fd: int32(ended), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || fds[0].Revents&unix.POLLIN == 0:
			return
		}
		g.one(listener)
	}
}

// listener receives the descriptor of the kernel's questions.
func (g *guard) listener() (int, error) {
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(g.socket.Fd()), make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return 0, errors.Join(err, os.ErrClosed)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, errors.Join(err, os.ErrClosed)
	}
	return fds[0], nil
}

// question and reply are the kernel's seccomp_notif and seccomp_notif_resp.
type (
	question struct {
		id         uint64
		pid, flags uint32
		number     int32
		arch       uint32
		at         uint64
		args       [6]uint64
	}
	reply struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

// one answers one question. The kernel takes no answer when the one that connects has ended meanwhile.
func (g *guard) one(listener int) {
	var q question
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV,
		uintptr(unsafe.Pointer(&q)))
	if errno != 0 {
		return
	}
	r := reply{id: q.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if err := checkConnect(q); err != nil {
		r.errno, r.flags = -int32(unix.EACCES), 0
		if g.refused == nil {
			g.refused = err
		}
	}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
}

// dnsPort is that of name servers, which may have link-local addresses.
const dnsPort = 53

// checkConnect refuses the address of a connect(2) that HTTP would not be fetched from.
func checkConnect(q question) error {
	address := make([]byte, min(q.args[2], unix.SizeofSockaddrInet6))
	if len(address) < unix.SizeofSockaddrInet4 {
		return nil // of another kind, or refused by the kernel
	}
	to := []unix.Iovec{{Base: &address[0]}}
	to[0].SetLen(len(address))
	from := []unix.RemoteIovec{{Base: uintptr(q.args[1]), Len: len(address)}}
	if n, err := unix.ProcessVMReadv(int(q.pid), to, from, 0); err != nil || n != len(address) {
		return fmt.Errorf("the address that it connects to can't be read: %w; does kernel.yama.ptrace_scope forbid it?",
			os.NewSyscallError("process_vm_readv", err))
	}
	var ip netip.Addr
	switch family := binary.NativeEndian.Uint16(address); {
	case family == unix.AF_INET:
		ip, _ = netip.AddrFromSlice(address[4:8])
	case family == unix.AF_INET6 && len(address) == unix.SizeofSockaddrInet6:
		ip, _ = netip.AddrFromSlice(address[8:24])
	default:
		return nil
	}
	if binary.BigEndian.Uint16(address[2:]) == dnsPort && isNameServer(ip) {
		return nil
	}
	return checkAddress(ip)
}

// isNameServer reports whether the system asks an address for names. Any server can name the port of name servers in a
// URL, so the port alone is not enough.
func isNameServer(ip netip.Addr) bool {
	text, _ := os.ReadFile("/etc/resolv.conf") // without it, the system asks this machine
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if at, err := netip.ParseAddr(fields[1]); err == nil && at.WithZone("").Unmap() == ip.Unmap() {
			return true
		}
	}
	return false
}
