package launch

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/internal/filehead"
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
	if problem := Problem(path); problem != "" {
		return problem
	}
	if interpreter := interpreterOf(path); interpreter != "" {
		return fmt.Sprintf("program %q needs %q, which does not exist: install that, or correct the program's first "+
			"line", path, interpreter)
	}
	return fmt.Sprintf("program %q needs an interpreter that does not exist", path)
}

func denied(p Program) string {
	if problem := Problem(p.Path); problem != "" {
		return problem
	}
	var fs unix.Statfs_t
	if unix.Statfs(p.Path, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Sprintf("%q lies on a file system mounted noexec: put it elsewhere, for instance into the task's "+
			"local directory", p.Path)
	}
	return fmt.Sprintf("user %q (uid %d) may not run %q or enter %q: check the permissions of both and of the "+
		"directories above",
		p.Name, os.Geteuid(), p.Path, p.Dir)
}

// Problem says why no user can execute the file at path, as far as the file's kind and mode show that; empty if they
// don't, or this user can't see them.
func Problem(path string) string {
	info, err := os.Stat(path)
	switch {
	case os.IsNotExist(err):
		return fmt.Sprintf("program %q does not exist: install it, or correct the command", path)
	case err == nil && !info.Mode().IsRegular():
		return fmt.Sprintf("%q is %s: correct the command", path, kind(info.Mode()))
	case err == nil && info.Mode()&0o111 == 0:
		return fmt.Sprintf("%q is not executable: chmod +x it", path)
	}
	return ""
}

// kind names the kind of a file that is no program.
func kind(mode os.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&os.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&os.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// maxHead is how much of a program is read. The kernel takes no more program headers: see load_elf_phdrs.
const maxHead = 64 << 10

// interpreterOf returns the interpreter that a script's first line or a program's headers name; empty for none.
func interpreterOf(path string) string {
	head, _ := filehead.Read(path, maxHead)
	if line, ok := bytes.CutPrefix(head, []byte("#!")); ok {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		name, _, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		return name
	}
	if len(head) >= 64 { // without what says where and how many sections there are: they may have any size
		clear(head[40:48])
		clear(head[58:64])
	}
	program, err := elf.NewFile(bytes.NewReader(head))
	if err != nil {
		return ""
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			name, _ := io.ReadAll(p.Open())
			return strings.TrimRight(string(name), "\x00")
		}
	}
	return ""
}
