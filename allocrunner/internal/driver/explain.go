package driver

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// checkSpec finds what the kernel would refuse without saying why.
func checkSpec(spec Spec) error {
	reason := ""
	switch {
	case spec.Task == "" || strings.ContainsAny(spec.Task, "/\x00"):
		reason = fmt.Sprintf("task name %q can't name files: it must not be empty or hold a slash", spec.Task)
	case !filepath.IsAbs(spec.Path):
		reason = fmt.Sprintf("program %q is no absolute path: look it up first", spec.Path)
	case !filepath.IsAbs(spec.Dir):
		reason = fmt.Sprintf("working directory %q is no absolute path", spec.Dir)
	case spec.OOMScoreAdj < 0 || spec.OOMScoreAdj > 1000:
		reason = fmt.Sprintf("oom_score_adj is %d: it must be from 0 to 1000", spec.OOMScoreAdj)
	case needsUser(spec.User) && os.Geteuid() != 0:
		reason = fmt.Sprintf("the task is to run as user %q (uid %d), but this program runs as uid %d and can't become another user: run it as root, or remove the task's user",
			spec.User.Name, spec.User.UID, os.Geteuid())
	case strings.Contains(spec.Path+spec.Dir+strings.Join(spec.Args, ""), "\x00"):
		reason = "command, arguments or working directory hold a NUL byte: remove it"
	}
	for _, entry := range spec.Env {
		if name, _, ok := strings.Cut(entry, "="); !ok || name == "" || strings.Contains(entry, "\x00") {
			reason = fmt.Sprintf("environment variable %q must have a name, an equals sign and no NUL byte", name)
		}
	}
	if reason == "" {
		return nil
	}
	return &StartError{Reason: reason, Err: unix.EINVAL}
}

// explain says in words why the kernel did not start the process. Nothing of the environment goes into the text.
func explain(spec Spec, err error) error {
	if errors.Is(err, ErrClosed) {
		return err
	}
	return &StartError{Reason: reason(spec, err), Err: err}
}

func reason(spec Spec, err error) string {
	if info, e := os.Stat(spec.Dir); errors.Is(e, os.ErrNotExist) {
		return fmt.Sprintf("working directory %q does not exist: make it, or correct work_dir", spec.Dir)
	} else if e == nil && !info.IsDir() {
		return fmt.Sprintf("working directory %q is no directory: correct work_dir", spec.Dir)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return missing(spec.Path)
	case errors.Is(err, unix.EACCES):
		return denied(spec)
	case errors.Is(err, unix.ENOEXEC):
		return fmt.Sprintf("%q is neither a program for this machine (%s/%s) nor a script with a #! line: build it for this machine, or add the line",
			spec.Path, runtime.GOOS, runtime.GOARCH)
	case errors.Is(err, unix.ETXTBSY):
		return fmt.Sprintf("%q is open for writing: whatever writes it must close it first", spec.Path)
	case errors.Is(err, unix.E2BIG):
		return "arguments and environment together are too long for the kernel: shorten them, or pass a file"
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return fmt.Sprintf("no room for another process (%v): raise the limit of processes or memory", cause(err))
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "too many open files: raise the limit of open files"
	case errors.Is(err, unix.EPERM):
		return fmt.Sprintf("starting %q as user %q is not permitted: this program lacks the capability, or a security module forbids it", spec.Path, spec.User.Name)
	}
	return fmt.Sprintf("%q can't be started: %v", spec.Path, cause(err))
}

// missing explains ENOENT, which the kernel also says of a program's interpreter.
func missing(path string) string {
	interpreter := interpreterOf(path)
	switch _, err := os.Stat(path); {
	case err != nil:
		return fmt.Sprintf("program %q does not exist: install it, or correct the command", path)
	case interpreter == "":
		return fmt.Sprintf("%q, or something that it needs, does not exist", path)
	}
	return fmt.Sprintf("%q needs %q to run, which does not exist: install that, or correct the #! line, or use a static build", path, interpreter)
}

// denied explains EACCES.
func denied(spec Spec) string {
	info, err := os.Stat(spec.Path)
	var fs unix.Statfs_t
	switch {
	case err == nil && info.IsDir():
		return fmt.Sprintf("%q is a directory: correct the command", spec.Path)
	case err == nil && info.Mode()&0o111 == 0:
		return fmt.Sprintf("%q is not executable: chmod +x it", spec.Path)
	case unix.Statfs(spec.Path, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0:
		return fmt.Sprintf("%q lies on a file system mounted noexec: put it elsewhere, for instance into the task's local directory", spec.Path)
	}
	return fmt.Sprintf("user %q (uid %d) may not run %q or enter %q: check the permissions of both and of the directories above",
		spec.User.Name, spec.User.UID, spec.Path, spec.Dir)
}

// interpreterOf is what a script's first line, or a program's header, names; empty when it names nothing.
func interpreterOf(path string) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _ := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n') // the kernel reads 256 bytes, too
	if rest, ok := strings.CutPrefix(line, "#!"); ok {
		if fields := strings.Fields(rest); len(fields) > 0 {
			return fields[0]
		}
		return ""
	}
	binary, err := elf.NewFile(f)
	if err != nil {
		return ""
	}
	for _, prog := range binary.Progs {
		if prog.Type == elf.PT_INTERP {
			name, _ := io.ReadAll(io.LimitReader(prog.Open(), unix.PathMax))
			return strings.TrimRight(string(name), "\x00")
		}
	}
	return ""
}

// cause is the innermost error.
func cause(err error) error {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err
}
