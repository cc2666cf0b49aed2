package keeper

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/privatefile"
	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// Command is the first argument with which the program is re-executed to be a keeper.
const Command = "keeper"

// maxLog is the size at which the keeper's own log is emptied. The log gets a few lines in a lifetime, and must not
// grow for ever.
const maxLog = 256 << 10

// settings go to the keeper over its standard input.
type settings struct {
	Dir      string
	Idle     time.Duration
	Tied     bool
	NoCgroup bool
}

// The descriptors that a keeper is started with.
const (
	stdin  = 0 // settings, as JSON
	stdout = 1 // the keeper writes one line to it: ready, or why it is not
	stderr = 2 // the log file
)

// ready is the line that says so.
const ready = "ready"

// Main runs a keeper until it ends. The program's main calls it before anything else when os.Args[1] is Command, and
// exits with the returned code: 0 after a graceful end, 1 if the keeper could not begin. Main reads its settings from
// its descriptors and takes no flags.
func Main(shorten drivers.Shorten) int {
	logger := slog.New(slog.NewTextHandler(privatefile.Log{Writer: os.Stderr, Max: maxLog}, nil))
	s, listener, err := begin(logger, shorten)
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		return 1
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, unix.SIGTERM)
	// The program that started this one may have had a terminal. A limit on file sizes must not end the keeper, and
	// with it the tasks.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGXFSZ, unix.SIGXCPU)

	fmt.Fprintln(os.Stdout, ready)
	if err := toNull(stdin, stdout); err != nil {
		logger.Warn("standard input and output stay as they are", "error", err)
	}
	keep := s.serve(listener, ends)
	_ = unix.Unlinkat(int(s.dir.Fd()), socketFile, 0) // gone with its directory, perhaps
	if !keep {
		_ = unix.Unlinkat(int(s.dir.Fd()), recordFile, 0)
	}
	return 0
}

// begin makes this process the allocation's keeper.
func begin(logger *slog.Logger, shorten drivers.Shorten) (*server, net.Listener, error) {
	var set settings
	if err := json.NewDecoder(os.Stdin).Decode(&set); err != nil {
		return nil, nil, fmt.Errorf("read the keeper's settings: %w", err)
	}
	if err := lock(stderr, filepath.Join(set.Dir, logFile), lockTime); err != nil {
		return nil, nil, err
	}
	// ps shows this name instead of the program's file name. It may fail, since it is only cosmetic.
	_ = os.WriteFile("/proc/self/comm", []byte("taskapi-keeper"), 0)
	if err := proc.Undumpable(); err != nil {
		logger.Warn("a core dump of the keeper would hold tokens", "error", err)
	}
	if err := os.Chdir("/"); err != nil {
		return nil, nil, err
	}
	self, err := proc.Identify(os.Getpid())
	if err != nil {
		return nil, nil, err
	}
	dir, err := openDir(set.Dir)
	if err != nil {
		return nil, nil, err
	}
	listener, err := listen(set.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	s := &server{
		dir: dir, idle: set.Idle, tied: set.Tied, logger: logger, self: self,
		previous: readPreviousExits(set.Dir, time.Now()),
		local: processes.New(processes.Config{
			Logger: logger, Dir: set.Dir, Shorten: shorten,
			Config: proctree.Config{NoCgroup: set.NoCgroup, Name: digest(set.Dir)},
		}),
		changed: wake.New(), closed: make(chan struct{}),
	}
	s.record()
	return s, listener, nil
}

// listen makes the socket with mode 0600. This process holds the lock, so an existing socket is stale.
func listen(dir string) (listener net.Listener, err error) {
	defer unix.Umask(unix.Umask(0o177))
	err = inDir(dir, func(path string) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false) // the path is no longer good by then
		listener = l
		return nil
	})
	return listener, err
}

func toNull(fds ...int) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for _, fd := range fds {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return nil
}

// readReady reads the one line that a new keeper writes. The error is io.EOF when it writes none.
func readReady(r io.Reader) error {
	line, err := bufio.NewReader(io.LimitReader(r, 4096)).ReadString('\n')
	switch line = strings.TrimSpace(line); line {
	case ready:
		return nil
	case "":
		return err
	}
	return errors.New(line)
}
