package ports

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// holder names the process that has an address, as far as /proc tells: not for others' processes unless we are root.
func holder(proto string, at netip.AddrPort) string {
	sockets := map[string]bool{}
	for _, table := range []string{proto, proto + "6"} {
		addSockets(sockets, "/proc/net/"+table, at.Port())
	}
	if len(sockets) == 0 {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is a good one
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !sockets[target] {
			continue // gone, or not ours to look at
		}
		proc := filepath.Dir(filepath.Dir(fd))
		comm, _ := os.ReadFile(filepath.Join(proc, "comm")) // of a process that just ended: none
		return fmt.Sprintf("; process %s (%s) has it", filepath.Base(proc), strings.TrimSpace(string(comm)))
	}
	return "; a process that we may not look into has it"
}

// addSockets adds the sockets on a port, in the form that links in /proc/PID/fd have. The table's lines are, per proc(5):
//
//	sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//	 0: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 ...
//
// A socket in TIME_WAIT has the inode 0: no process has it. Others keep the port from us whatever their state is.
func addSockets(sockets map[string]bool, table string, port uint16) {
	data, err := os.ReadFile(table)
	if err != nil {
		return // a machine without IPv6 has no such table
	}
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) > 9 && strings.HasSuffix(fields[1], suffix) && fields[9] != "0" {
			sockets["socket:["+fields[9]+"]"] = true
		}
	}
}
