// Package proc reads /proc about processes and the machine, and gives processes identities that are never used again.
// It signals exactly the named process, never another one that has got its number since. It starts nothing.
package proc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Stat is what /proc/PID/stat says of a process. PID and Start together name it until the machine boots; PID alone may
// be used again.
type Stat struct {
	PID, Parent, Session int
	Start                uint64 // clock ticks after boot
	Dead                 bool   // a zombie, or gone
	Stopped              bool   // by a signal, such as SIGSTOP, or by a debugger
	Terminal             bool   // its session has a controlling terminal

	CPU      CPUTime // of its threads, the dead ones included
	Children CPUTime // of its dead children and theirs, as far as each was waited for
	RSS      uint64  // bytes; pages that processes share count for each
	Threads  int
}

// fileSize is more than /proc/PID/stat has, 52 numbers and a name of 15 bytes, or of a kernel thread's 63, and most
// lists of children.
const fileSize = 2048

// Read reads one process. The error is ENOENT or ESRCH when there is none.
func Read(pid int) (Stat, error) {
	text, err := readAll("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, err
	}
	return parseStat(pid, text)
}

// readAll reads a file of /proc by plain system calls: a tree is looked for among many processes, and package os takes
// twice as long.
func readAll(name string) (string, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var text strings.Builder
	var buf [fileSize]byte
	for n := len(buf); n == len(buf) && err == nil; {
		n, err = unix.Read(fd, buf[:])
		text.Write(buf[:max(n, 0)])
	}
	return text.String(), err
}

// parseStat reads proc_pid_stat(5). The program's name, in parentheses, may hold blanks, newlines and parentheses.
func parseStat(pid int, text string) (Stat, error) {
	end := strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[end+1:])
	if end < 0 || len(fields) < 22 {
		return Stat{}, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	var err error
	number := func(field int) int { // numbered as in the manual, where the state is 3
		n, e := strconv.Atoi(fields[field-3])
		err = cmp.Or(err, e)
		return n
	}
	ticks := func(field int) time.Duration { return time.Duration(number(field)) * tick }
	s := Stat{
		PID: pid, Parent: number(4), Session: number(6), Terminal: number(7) != 0, Start: uint64(number(22)),
		CPU: CPUTime{ticks(14), ticks(15)}, Children: CPUTime{ticks(16), ticks(17)},
		RSS: uint64(number(24)) * pageSize, Threads: number(20),
	}
	// If the first thread has ended and others run, the process is shown as a zombie, too, and is none.
	s.Dead = fields[0] == "X" || fields[0] == "Z" && s.Threads <= 1
	s.Stopped = fields[0] == "T" || fields[0] == "t"
	return s, err
}

// PIDs returns the numbers of all processes that this program can see.
func PIDs() ([]int, error) { return numbersIn("/proc") }

// numbersIn returns the names in a directory that are numbers.
func numbersIn(name string) ([]int, error) {
	dir, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	numbers := make([]int, 0, len(names))
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// All reads all processes that this program can see, by number.
func All() (map[int]Stat, error) {
	pids, err := PIDs()
	if err != nil {
		return nil, err
	}
	all := make(map[int]Stat, len(pids))
	for _, pid := range pids {
		if s, err := Read(pid); err == nil {
			all[pid] = s
		}
	}
	return all, nil
}

// Children returns the numbers of a process's children, dead ones that nobody has waited for included. A process that
// has ended has none. The kernel makes the list while it is read: a child whose parent, or whose elder sibling, ends
// meanwhile may be missing from it.
func Children(pid int) ([]int, error) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := numbersIn(tasks)
	if !listsChildren() || err != nil && Hidden(pid) {
		return childrenAmongAll(pid)
	}
	var children []int
	for _, thread := range threads {
		var text string
		if text, err = readAll(tasks + "/" + strconv.Itoa(thread) + "/children"); err != nil && !isGone(err) {
			break
		}
		for field := range strings.FieldsSeq(text) {
			child, _ := strconv.Atoi(field) // the kernel writes nothing else
			children = append(children, child)
		}
	}
	if err != nil && !isGone(err) {
		return nil, fmt.Errorf("look for the children of process %d: %w", pid, err)
	}
	return children, nil
}

// listsChildren reports whether the kernel was built with CONFIG_PROC_CHILDREN.
var listsChildren = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/thread-self/children")
	return err == nil
})

func childrenAmongAll(pid int) ([]int, error) {
	all, err := All()
	var children []int
	for child, s := range all {
		if s.Parent == pid {
			children = append(children, child)
		}
	}
	return children, err
}

// isGone reports whether an error is what the files of a process that has ended give.
func isGone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// Args returns a process's arguments, its own name first, each followed by a NUL byte. They are empty for a zombie, or
// when there is no process.
func Args(pid int) string {
	text, _ := readAll("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return text
}

// Kill sends SIGKILL to the process. It is no error when it has ended.
func (s Stat) Kill() error { return s.Signal(unix.SIGKILL) }

// Signal sends a signal to the process. It is no error when it has ended.
func (s Stat) Signal(sig unix.Signal) error {
	return signal(s.PID, sig, func() bool {
		now, err := Read(s.PID)
		return err == nil && now.Start == s.Start
	})
}

// signal sends a signal to the process that has the number, if runs reports that it is the right one.
func signal(pid int, sig unix.Signal, runs func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !runs() {
		return nil
	}
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// HasEnv reports whether the process was started with that entry in its environment.
func HasEnv(pid int, entry string) bool {
	if entry == "" {
		return false
	}
	env, err := readAll("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && strings.Contains("\x00"+env, "\x00"+entry+"\x00")
}

// Env returns the value of a variable that the process was started with. It is empty when the process has none, or
// can't be read.
func Env(pid int, name string) string {
	env, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(name+"=")); ok {
			return string(value)
		}
	}
	return ""
}
