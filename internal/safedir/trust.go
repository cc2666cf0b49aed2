package safedir

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Trust checks that nobody but root and this process's user can change the directory at an absolute path or replace it,
// and returns its path without symbolic links. The directory and all above it must belong to one of the two, and nobody
// else may be able to write to them. Those above may also be sticky directories that everybody may write to, as /tmp
// is. Names at the end of the path that don't exist yet are not checked. Errors: ErrUnsafe, which says what to change;
// those of a directory that can't be reached.
func Trust(path string) (resolved string, err error) {
	d, rest, err := walk(path, check)
	if d == nil {
		return "", err
	}
	defer d.Close()
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return "", err
	}
	return filepath.Join(append([]string{d.Path}, rest...)...), nil
}

// TrustFile checks that nobody but root and this process's user can change the file at an absolute path or replace it.
// Errors: ErrUnsafe and ErrUnsafeFile, which say what to change; those of a file that can't be reached.
func TrustFile(path string) error {
	if _, err := Trust(path); err != nil && !errors.Is(err, unix.ENOTDIR) { // ENOTDIR: the way is safe and ends at a file
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	mode := st.Mode & 0o7777
	owner, who := int(st.Uid), writers(&st)
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return &os.PathError{Op: "read", Path: path, Err: unix.EISDIR}
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to %s, who can change it; if you trust what is in it, run 'chown %d %[2]s'",
			ErrUnsafeFile, path, userName(owner), os.Geteuid())
	case who != "":
		return fmt.Errorf("%w: %s can change %s (mode %04o); if you trust what is in it, run 'chmod go-w %[3]s'",
			ErrUnsafeFile, who, path, mode)
	}
	return nil
}

// writers returns who can write to a file beside its owner and trusted groups, "" for nobody.
func writers(st *unix.Stat_t) string {
	switch {
	case st.Mode&0o002 != 0:
		return "every user"
	case st.Mode&0o020 != 0 && !private(st.Gid):
		return "its group"
	}
	return ""
}

func check(d *Dir, last bool) error {
	mode := d.Stat.Mode & 0o7777
	if owner := int(d.Stat.Uid); owner != 0 && owner != os.Geteuid() && (last || !outside(owner)) {
		return fmt.Errorf("%w: %s belongs to %s (mode %04o), who can replace what is in it: "+
			"run taskapi as that user, or, if you trust all that is there, run 'chown %d %[2]s'",
			ErrUnsafe, d.Path, userName(owner), mode, os.Geteuid())
	}
	who := writers(&d.Stat)
	if who == "" || !last && mode&unix.S_ISVTX != 0 {
		return nil
	}
	return fmt.Errorf("%w: %s can write to %s (mode %04o); if you trust all that is there, run 'chmod go-w %[3]s'",
		ErrUnsafe, who, d.Path, mode)
}

// outside reports whether an owner stands for all users outside of this process's user namespace, such as the machine's
// root. This process can't protect itself from these.
func outside(owner int) bool {
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil || strings.TrimSpace(string(overflow)) != strconv.Itoa(owner) {
		return false
	}
	mapped, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(mapped)) {
		var first, out, count int
		if _, err := fmt.Sscan(line, &first, &out, &count); err != nil || first <= owner && owner-first < count {
			return false
		}
	}
	return true
}

func userName(uid int) string {
	number := strconv.Itoa(uid)
	if u, err := user.LookupId(number); err == nil {
		return "user " + u.Username
	}
	return "uid " + number
}

// private reports whether a group has this process's user as its only member, and the user's name. Many systems give
// each user such a group, with a umask that lets the group write.
func private(gid uint32) bool {
	uid := os.Geteuid()
	if uid == 0 || int(gid) != os.Getegid() {
		return false
	}
	me, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return false
	}
	f, err := os.Open("/etc/group")
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) == 4 && fields[2] == strconv.Itoa(int(gid)) {
			return fields[0] == me.Username && (fields[3] == "" || fields[3] == me.Username)
		}
	}
	return false
}
