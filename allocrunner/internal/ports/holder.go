package ports

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// holder names the process that has an address, as far as /proc shows it: other users' processes only to root.
func holder(proto string, at netip.AddrPort) string {
	sockets := map[string]bool{}
	for _, table := range []string{proto, proto + "6"} {
		addSockets(sockets, "/proc/net/"+table, at)
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
	return fmt.Sprintf("; a process of another user has it: as root, ss -nap 'sport = :%d' shows it", at.Port())
}

// addSockets adds the sockets that overlap with an address, as links in /proc/PID/fd name them. The table's lines are,
// per proc(5):
//
//	sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//	 0: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 ...
//
// A socket in TIME_WAIT has the inode 0: no process has it. All others hold the port, whatever their state is.
func addSockets(sockets map[string]bool, table string, at netip.AddrPort) {
	data, err := os.ReadFile(table)
	if err != nil {
		return // a machine without IPv6 has no such table
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[9] == "0" {
			continue
		}
		local, ok := parseLocal(fields[1])
		if ok && local.Port() == at.Port() && overlap(local.Addr(), at.Addr()) {
			sockets["socket:["+fields[9]+"]"] = true
		}
	}
}

// parseLocal reads an address of the table: words of 32 bits in the machine's byte order, and the port.
func parseLocal(field string) (netip.AddrPort, bool) {
	words, portText, _ := strings.Cut(field, ":")
	port, err := strconv.ParseUint(portText, 16, 16)
	if err != nil || len(words)%8 != 0 {
		return netip.AddrPort{}, false
	}
	var bytes []byte
	for ; words != ""; words = words[8:] {
		word, err := strconv.ParseUint(words[:8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, false
		}
		bytes = binary.NativeEndian.AppendUint32(bytes, uint32(word))
	}
	addr, ok := netip.AddrFromSlice(bytes)
	return netip.AddrPortFrom(addr, uint16(port)), ok
}
