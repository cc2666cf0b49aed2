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

// Trust makes sure that nobody but root and this process's user can put anything into the directory at an absolute path, or another
// directory in its place, and returns its path without symbolic links: it and all above it belong to one of the two, and nobody else
// may write to them. The directories above it may be sticky ones that everybody may write to, as /tmp is. What of the path does not exist
// yet is taken as it is. Errors: ErrUnsafe, which says what to change; those of a directory that can't be reached.
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

// TrustFile makes sure that nobody but root and this process's user can change the file at an absolute path, or put another one in its
// place. Errors: ErrUnsafe and ErrUnsafeFile, which say what to change; those of a file that can't be reached.
func TrustFile(path string) error {
	if _, err := Trust(path); err != nil && !errors.Is(err, unix.ENOTDIR) { // the way there is good, and no directory at its end
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	mode := st.Mode & 0o7777
	switch owner := int(st.Uid); {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return &os.PathError{Op: "read", Path: path, Err: unix.EISDIR}
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to %s, who can change it; if you trust what is in it, run 'chown %d %s'", ErrUnsafeFile, path, userName(owner),
			os.Geteuid(), path)
	case mode&0o002 != 0:
		return fmt.Errorf("%w: every user can change %s (mode %04o); if you trust what is in it, run 'chmod go-w %s'", ErrUnsafeFile, path, mode, path)
	case mode&0o020 != 0 && !private(st.Gid):
		return fmt.Errorf("%w: its group can change %s (mode %04o); if you trust what is in it, run 'chmod go-w %s'", ErrUnsafeFile, path, mode, path)
	}
	return nil
}

func check(d *Dir, last bool) error {
	mode := d.Stat.Mode & 0o7777
	if owner := int(d.Stat.Uid); owner != 0 && owner != os.Geteuid() && (last || !outside(owner)) {
		return fmt.Errorf("%w: %s belongs to %s (mode %04o), who can replace what is in it: run taskapi as that user, or, if you trust all that is there, run 'chown %d %s'",
			ErrUnsafe, d.Path, userName(owner), mode, os.Geteuid(), d.Path)
	}
	switch {
	case mode&0o022 == 0, !last && mode&unix.S_ISVTX != 0, mode&0o002 == 0 && private(d.Stat.Gid):
		return nil
	}
	who := "its group"
	if mode&0o002 != 0 {
		who = "every user"
	}
	return fmt.Errorf("%w: %s can write to %s (mode %04o); if you trust all that is there, run 'chmod go-w %s'", ErrUnsafe, who, d.Path, mode, d.Path)
}

// outside reports whether an owner stands for all who are not in this process's user namespace, the machine's root among them. Above the
// directory there is nothing that this process could do about them.
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

// private reports whether a group is this process's user alone, as many systems give to each user: of the same name, and with no further
// member. With it goes a umask that lets the group write.
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
