// Package memory gives memory back to the system that a program does not need while nothing happens.
package memory

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GiveBack returns the heap's free pages to the kernel and, which is most, the pages of the program itself. Its start has touched those, and few are
// used again; the kernel brings them back from its page cache when they are, at some hundred nanoseconds each.
func GiveBack() {
	debug.FreeOSMemory()
	for _, m := range programMappings() {
		// Refused for locked memory, which is meant to stay.
		_, _, _ = unix.RawSyscall(unix.SYS_MADVISE, m.start, m.length, unix.MADV_DONTNEED)
	}
}

type mapping struct{ start, length uintptr }

// programMappings returns the parts of this program's file in memory that are the same as in the file. One that is writable, or that
// something was ever written to, is none: what was written there would be gone. The file is described in proc_pid_smaps(5).
func programMappings() []mapping {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer f.Close()
	var found []mapping
	var here mapping
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if m, isHead := parseHead(lines.Text(), program); isHead {
			here = m
			continue
		}
		if rest, ok := strings.CutPrefix(lines.Text(), "Anonymous:"); ok && here.length > 0 && strings.TrimSpace(rest) == "0 kB" {
			found = append(found, here)
		}
	}
	return found
}

// parseHead reads the first line of a mapping, such as "00400000-00aef000 r-xp 00000000 fe:00 1234    /usr/bin/taskapi". The mapping is
// empty unless it is one of the program's that can only be read.
func parseHead(line, program string) (m mapping, isHead bool) {
	addresses, rest, _ := strings.Cut(line, " ")
	from, to, isHead := strings.Cut(addresses, "-")
	if !isHead {
		return m, false
	}
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	mode, _, _ := strings.Cut(rest, " ")
	if err1 != nil || err2 != nil || end <= start || mode != "r-xp" && mode != "r--p" || !strings.HasSuffix(line, " "+program) {
		return m, true
	}
	return mapping{uintptr(start), uintptr(end - start)}, true
}
