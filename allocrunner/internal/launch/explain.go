package launch

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// explain says in words why the process did not become the program, without reading a file. The text contains nothing
// from the environment.
func explain(p Program, at step, errno unix.Errno) string {
	switch {
	case at == enterDir && errno == unix.ENOENT:
		return fmt.Sprintf("working directory %q does not exist: make it, or correct work_dir", p.Dir)
	case at == enterDir && errno == unix.ENOTDIR:
		return fmt.Sprintf("working directory %q is no directory: correct work_dir", p.Dir)
	case at == changeUser, errno == unix.EPERM:
		return fmt.Sprintf("starting %q as user %q is not permitted: this program lacks the capability, or a security "+
			"module forbids it", p.Path, p.Name)
	case errno == unix.ENOEXEC:
		return fmt.Sprintf("%q is neither a program for this machine (%s/%s) nor a script with a #! line: build it "+
			"for this machine, or add the line",
			p.Path, runtime.GOOS, runtime.GOARCH)
	case errno == unix.ETXTBSY:
		return fmt.Sprintf("%q is open for writing: whatever writes it must close it first", p.Path)
	case errno == unix.E2BIG:
		return "arguments and environment together are too long for the kernel: shorten them, or pass a file"
	case errno == unix.EAGAIN, errno == unix.ENOMEM:
		return fmt.Sprintf("no room for another process (%v): raise the limit of processes or memory", errno)
	}
	return fmt.Sprintf("%q can't be started: %v", p.Path, errno)
}

// The functions below run in a process that could not become the program, as the task's user. They open only files that
// the user may open, and read a bounded part of them, since a file may be malicious.

// init is the whole program of a process that explains a failure.
func init() {
	if len(os.Args) == 0 || os.Args[0] != Name {
		return
	}
	if len(os.Args) == 5 {
		p := Program{Path: os.Args[2], Dir: os.Args[3], Name: os.Args[4]}
		reason := denied(p)
		if os.Args[1] == string(rune(unix.ENOENT)) {
			reason = missing(p.Path)
		}
		_, _ = os.NewFile(connFD, "launch").WriteString(reason) // nobody listens, then
	}
	os.Exit(exitCode)
}

// missing explains ENOENT, which the kernel also returns for a program's missing interpreter.
func missing(path string) string {
	interpreter := interpreterOf(path)
	switch _, err := os.Stat(path); {
	case err != nil:
		return fmt.Sprintf("program %q does not exist: install it, or correct the command", path)
	case interpreter != "":
		return fmt.Sprintf("program %q needs %q, which does not exist: install that, or correct the program's first "+
			"line", path, interpreter)
	}
	return fmt.Sprintf("program %q needs an interpreter that does not exist", path)
}

func denied(p Program) string {
	info, err := os.Stat(p.Path)
	var fs unix.Statfs_t
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Sprintf("%q is %s: correct the command", p.Path, Kind(info.Mode()))
	case err == nil && info.Mode()&0o111 == 0:
		return fmt.Sprintf("%q is not executable: chmod +x it", p.Path)
	case unix.Statfs(p.Path, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0:
		return fmt.Sprintf("%q lies on a file system mounted noexec: put it elsewhere, for instance into the task's "+
			"local directory", p.Path)
	}
	return fmt.Sprintf("user %q (uid %d) may not run %q or enter %q: check the permissions of both and of the "+
		"directories above",
		p.Name, os.Geteuid(), p.Path, p.Dir)
}

// Kind names the kind of a file that is no program.
func Kind(mode os.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&os.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&os.ModeSocket != 0:
		return "a socket"
	case mode&os.ModeDevice != 0:
		return "a device"
	}
	return "no plain file"
}

// The kernel reads as much of a program's first line, and takes no more program headers: see BINPRM_BUF_SIZE and
// load_elf_phdrs.
const (
	maxLine    = 256
	maxHeaders = 64 << 10
)

// interpreterOf returns the interpreter that a script's first line or a program's headers name; empty for none. Of a
// program it reads only the header and the program headers, since other parts may have any size.
func interpreterOf(path string) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	head := make([]byte, maxLine)
	n, _ := f.ReadAt(head, 0)
	head = head[:n]
	if rest, ok := bytes.CutPrefix(head, []byte("#!")); ok {
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		if fields := strings.Fields(string(line)); len(fields) > 0 {
			return fields[0]
		}
		return ""
	}
	return elfInterpreter(f, head)
}

// elfInterpreter returns what the program headers of a 64-bit program of this machine's byte order name.
func elfInterpreter(f io.ReaderAt, head []byte) string {
	var h elf.Header64
	if _, err := binary.Decode(head, binary.NativeEndian, &h); err != nil || string(h.Ident[:4]) != elf.ELFMAG ||
		h.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64) {
		return ""
	}
	var prog elf.Prog64
	size := binary.Size(prog)
	if int(h.Phentsize) != size || int(h.Phnum)*size > maxHeaders {
		return ""
	}
	headers := make([]byte, int(h.Phnum)*size)
	if _, err := f.ReadAt(headers, int64(h.Phoff)); err != nil {
		return ""
	}
	for ; len(headers) > 0; headers = headers[size:] {
		if _, err := binary.Decode(headers, binary.NativeEndian, &prog); err != nil ||
			elf.ProgType(prog.Type) != elf.PT_INTERP {
			continue
		}
		name := make([]byte, min(prog.Filesz, unix.PathMax))
		n, _ := f.ReadAt(name, int64(prog.Off))
		text, _, _ := strings.Cut(string(name[:n]), "\x00")
		return text
	}
	return ""
}
