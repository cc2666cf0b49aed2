package proc

import (
	"cmp"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"
)

// Description describes a process for people.
type Description struct {
	UID     uint32 // the effective user
	Started time.Time
	Command string // its arguments, or its name in brackets when it has none
}

// maxCommand bounds what is read of a process's arguments, which may be megabytes.
const maxCommand = 4 << 10

// Describe describes a process. The error is ENOENT or ESRCH when there is none.
func Describe(pid int) (Description, error) {
	s, err := Read(pid)
	if err != nil {
		return Description{}, err
	}
	d := Description{Started: time.Now().Add(-s.Age(UptimeTicks()))}
	dir := "/proc/" + strconv.Itoa(pid)
	status := maps.Collect(Values(dir + "/status"))
	uids := strings.Fields(status["Uid"]) // real, effective, saved, of the file system
	if len(uids) < 2 {
		return d, os.ErrNotExist // it has ended since
	}
	uid, err := strconv.ParseUint(uids[1], 10, 32)
	d.UID, d.Command = uint32(uid), cmp.Or(command(dir), "["+status["Name"]+"]")
	return d, err
}

// command returns the beginning of a process's arguments with blanks between them.
func command(dir string) string {
	f, err := os.Open(dir + "/cmdline")
	if err != nil {
		return ""
	}
	defer f.Close()
	text := make([]byte, maxCommand)
	n, _ := f.Read(text) // nothing to be read is nothing to be shown
	return strings.TrimSpace(strings.ReplaceAll(string(text[:n]), "\x00", " "))
}
