package allocdir

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"

	"taskapi/allocrunner/interfaces"
)

// ErrUser: a task's user can't be used. It wraps the reason.
var ErrUser = errors.New("failed to identify user")

// LookupUser resolves a task's user: a name, a number, or numbers "UID:GID". Empty means the user who runs taskapi. A
// number need not be in the user database; without a GID, the group is the database's, or has the same number. Only
// root may run tasks as another user. Errors: ErrUser.
func LookupUser(name string) (interfaces.User, error) {
	u, err := lookup(name)
	if err != nil {
		return interfaces.User{}, fmt.Errorf("%w %q: %w", ErrUser, name, err)
	}
	if me := os.Geteuid(); me != 0 && int(u.UID) != me {
		return interfaces.User{}, fmt.Errorf("%w %q: %w", ErrUser, name, becomeError{me})
	}
	return u, nil
}

// becomeError means that this process, which runs as uid, can't become another user.
type becomeError struct{ uid int }

func (e becomeError) Error() string {
	return fmt.Sprintf("taskapi runs as uid %d and can start tasks as that user only; run it as root, or leave user out",
		e.uid)
}

// CantBecome reports whether an error of LookupUser says that the user exists and that this process can't become it.
func CantBecome(err error) bool {
	_, ok := errors.AsType[becomeError](err)
	return ok
}

func lookup(name string) (interfaces.User, error) {
	if name == "" {
		return byID(uint32(os.Geteuid()), uint32(os.Getegid()), true)
	}
	uidText, gidText, hasGID := strings.Cut(name, ":")
	uid, numeric := parseID(uidText)
	gid, numericGID := parseID(gidText)
	switch {
	case !numeric && hasGID, hasGID && !numericGID:
		return interfaces.User{}, errors.New(`want a user name, a number, or "UID:GID" in numbers`)
	case numeric:
		return byID(uid, gid, hasGID)
	}
	entry, err := user.Lookup(name)
	if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
		return interfaces.User{}, errors.New("unknown user " + name) // as Nomad says it
	}
	if err != nil {
		return interfaces.User{}, err
	}
	return fromEntry(entry)
}

// byID returns the user with a number, from the user database if it has the number.
func byID(uid, gid uint32, hasGID bool) (interfaces.User, error) {
	number := strconv.FormatUint(uint64(uid), 10)
	u := interfaces.User{Name: number, UID: uid, GID: uid, Home: "/", Shell: ""}
	entry, err := user.LookupId(number)
	if _, unknown := errors.AsType[user.UnknownUserIdError](err); err != nil && !unknown {
		return interfaces.User{}, err
	}
	if err == nil {
		if u, err = fromEntry(entry); err != nil {
			return interfaces.User{}, err
		}
	}
	if hasGID {
		u.GID = gid
	}
	return u, nil
}

func fromEntry(entry *user.User) (interfaces.User, error) {
	uid, okUID := parseID(entry.Uid)
	gid, okGID := parseID(entry.Gid)
	if !okUID || !okGID {
		return interfaces.User{}, fmt.Errorf("the user database has uid %q and gid %q, which are no numbers", entry.Uid,
			entry.Gid)
	}
	u := interfaces.User{Name: entry.Username, UID: uid, GID: gid, Home: entry.HomeDir, Shell: shellOf(entry.Username)}
	ids, err := entry.GroupIds()
	if err != nil {
		return interfaces.User{}, fmt.Errorf("read its groups: %w", err)
	}
	for _, text := range ids {
		if id, ok := parseID(text); ok && id != gid {
			u.Groups = append(u.Groups, id)
		}
	}
	return u, nil
}

// parseID reads a uid or gid. The highest number is not valid: to chown(2) it means "no change".
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

// shellOf returns the login shell of a user in /etc/passwd, which os/user does not return. It is empty for other users.
func shellOf(name string) string {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) == 7 && fields[0] == name {
			return fields[6]
		}
	}
	return ""
}
