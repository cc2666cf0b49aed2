package driver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stat is what /proc/PID/stat says of a process. pid and start together name it for good; pid alone may be used again.
type stat struct {
	pid, parent, session int
	start                uint64 // clock ticks after boot
	dead                 bool   // a zombie, or gone
}

// readStat reads one process. The error is ENOENT or ESRCH when there is none.
func readStat(pid int) (stat, error) {
	// By plain system calls: a tree is looked for among all processes of the machine, and package os takes twice as long.
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return stat{}, err
	}
	defer unix.Close(fd)
	var buf [1024]byte // 52 numbers and a name of 15 bytes
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return stat{}, err
	}
	return parseStat(pid, string(buf[:n]))
}

// parseStat reads proc_pid_stat(5). The program's name, in parentheses, may hold blanks and parentheses.
func parseStat(pid int, text string) (stat, error) {
	end := strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[end+1:])
	if end < 0 || len(fields) < 20 {
		return stat{}, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	var err error
	number := func(field int) int { // numbered as in the manual, where the state is 3
		n, e := strconv.Atoi(fields[field-3])
		err = errors.Join(err, e)
		return n
	}
	s := stat{pid: pid, parent: number(4), session: number(6)}
	s.start = uint64(number(22))
	// When the first thread has ended but others run, the process is shown as a zombie, too, and is none.
	s.dead = fields[0] == "X" || fields[0] == "Z" && number(20) <= 1
	return s, err
}

// snapshot reads all processes that this program can see.
func snapshot() (map[int]stat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all := make(map[int]stat, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil {
			all[pid] = s
		}
	}
	return all, nil
}

// killExact sends SIGKILL to the very process that s describes, not to another that got its number since.
func killExact(s stat) error {
	fd, err := unix.PidfdOpen(s.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, err := readStat(s.pid)
	if err != nil || now.start != s.start {
		return nil // it has ended
	}
	err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// hasEnv reports whether the process was started with that entry in its environment.
func hasEnv(pid int, entry string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && entry != "" && bytes.Contains(append([]byte{0}, env...), []byte("\x00"+entry+"\x00"))
}
