package proc

import (
	"cmp"
	"fmt"
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
	name := ""
	for key, value := range Values(dir + "/status") {
		switch fields := strings.Fields(value); {
		case key == "Name":
			name = value
		case key == "Uid" && len(fields) > 1: // real, effective, saved, of the file system
			uid, err := strconv.ParseUint(fields[1], 10, 32)
			if err != nil {
				return d, fmt.Errorf("%s/status: %w", dir, err)
			}
			d.UID = uint32(uid)
		}
	}
	if name == "" {
		return d, os.ErrNotExist // it has ended since
	}
	d.Command = cmp.Or(command(dir), "["+name+"]")
	return d, nil
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
