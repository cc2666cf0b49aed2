package ports

import (
	"fmt"
	"net/netip"

	"github.com/prometheus/procfs"
)

// tcpListen is a listening socket's state in /proc/net/tcp (TCP_LISTEN in the kernel's tcp_states.h).
const tcpListen = 0x0a

// holder names the process that has an address, as far as /proc tells: not for others' processes unless we are root.
func holder(proto string, at netip.AddrPort) string {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return ""
	}
	inodes := socketInodes(fs, proto, at)
	if len(inodes) == 0 {
		return ""
	}
	procs, err := fs.AllProcs()
	if err != nil {
		return ""
	}
	for _, p := range procs {
		targets, _ := p.FileDescriptorTargets() // of a process that is not ours to look into: none
		for _, target := range targets {
			if inodes[target] {
				comm, _ := p.Comm()
				return fmt.Sprintf("; %s, pid %d, has it", comm, p.PID)
			}
		}
	}
	return "; a process that we may not look into has it"
}

// socketInodes are the sockets on the address's port, in the form that links in /proc/PID/fd have.
func socketInodes(fs procfs.FS, proto string, at netip.AddrPort) map[string]bool {
	inodes := map[string]bool{}
	add := func(port, inode uint64) {
		if port == uint64(at.Port()) && inode != 0 {
			inodes[fmt.Sprintf("socket:[%d]", inode)] = true
		}
	}
	if proto == "udp" {
		for _, table := range []func() (procfs.NetUDP, error){fs.NetUDP, fs.NetUDP6} {
			lines, _ := table() // absent without IPv6
			for _, l := range lines {
				add(l.LocalPort, l.Inode)
			}
		}
		return inodes
	}
	for _, table := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} {
		lines, _ := table()
		for _, l := range lines {
			if l.St == tcpListen {
				add(l.LocalPort, l.Inode)
			}
		}
	}
	return inodes
}
