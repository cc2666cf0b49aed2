// Package memory says how much memory this process has, and gives back to the system what it does not need while
// nothing happens.
package memory

import (
	"bufio"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// InUse returns how many bytes of the system's memory the Go runtime has.
func InUse() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// Allocated returns how many bytes this process has allocated on the heap since its start.
func Allocated() uint64 {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}

// GiveBack returns the heap's free pages to the kernel and, which is most, the pages of the program's own file.
func GiveBack() {
	debug.FreeOSMemory()
	GiveBackProgram()
}

// GiveBackProgram returns the pages of the program's own file to the kernel. The program's start has touched those
// pages, and few are used again. The kernel brings a page back from its page cache in some hundred nanoseconds.
func GiveBackProgram() {
	mappings := programMappings()
	bringSingly.Do(func() {
		for _, m := range mappings {
			_, _, _ = unix.RawSyscall(unix.SYS_MADVISE, m.start, m.length, unix.MADV_NOHUGEPAGE)
		}
		file, ok := openTracker()
		if !ok {
			return
		}
		for _, m := range mappings {
			register := struct{ start, length, what, calls uint64 }{uint64(m.start), uint64(m.length), writes, 0}
			_, _, _ = unix.Syscall(unix.SYS_IOCTL, file, registerCall, uintptr(unsafe.Pointer(&register)))
		}
	})
	for _, m := range mappings {
		// Refused for locked memory, which is meant to stay.
		_, _, _ = unix.RawSyscall(unix.SYS_MADVISE, m.start, m.length, unix.MADV_DONTNEED)
	}
}

// bringSingly makes the kernel bring back single pages. Otherwise it brings 2 MiB at once where its page cache has the
// file in such pieces, and elsewhere fifteen neighbours with each page, which are most of what an idle program has in
// memory. It has no setting for neighbours, but brings none in a mapping whose writes userfaultfd(2) tracks. Nothing is
// ever written to these mappings. The tracking ends with the process.
var bringSingly sync.Once

// These are from linux/userfaultfd.h.
const (
	userModeOnly   = 1
	apiVersion     = 0xaa
	apiCall        = 0xc018aa3f
	asynchronously = 1 << 15
	registerCall   = 0xc020aa00
	writes         = 1 << 1
)

// openTracker opens a file of userfaultfd(2) that can track writes to any mapping, which needs Linux 6.7, until it is
// closed. A process with a seccomp filter does without: the filter may kill it for a system call that few programs
// make.
func openTracker() (file uintptr, ok bool) {
	if filter, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil || filter != 0 {
		return 0, false
	}
	file, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, userModeOnly|unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return 0, false
	}
	api := struct{ version, features, calls uint64 }{apiVersion, asynchronously, 0}
	if _, _, errno = unix.Syscall(unix.SYS_IOCTL, file, apiCall, uintptr(unsafe.Pointer(&api))); errno != 0 {
		unix.Close(int(file))
		return 0, false
	}
	return file, true
}

type mapping struct{ start, length uintptr }

// programMappings returns the mappings of this program's file that are the same in memory as in the file. A mapping to
// which something was ever written is not among them: what was written would be lost. proc_pid_smaps(5) describes the
// file that is read.
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
		if rest, ok := strings.CutPrefix(lines.Text(), "Anonymous:"); ok && here.length > 0 &&
			strings.TrimSpace(rest) == "0 kB" {
			found = append(found, here)
		}
	}
	return found
}

// parseHead reads the first line of a mapping, such as "00400000-00aef000 r-xp 00000000 fe:00 1234
// /usr/bin/taskapi". It returns an empty mapping unless the mapping is a read-only one of the program's file.
func parseHead(line, program string) (m mapping, isHead bool) {
	addresses, rest, _ := strings.Cut(line, " ")
	from, to, isHead := strings.Cut(addresses, "-")
	if !isHead {
		return m, false
	}
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	mode, _, _ := strings.Cut(rest, " ")
	if err1 != nil || err2 != nil || end <= start || mode != "r-xp" && mode != "r--p" ||
		!strings.HasSuffix(line, " "+program) {
		return m, true
	}
	return mapping{uintptr(start), uintptr(end - start)}, true
}
