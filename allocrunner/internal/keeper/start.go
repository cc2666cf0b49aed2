package keeper

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
	"taskapi/internal/flock"
	"taskapi/internal/peercred"
	"taskapi/internal/privatefile"
)

// The defaults of a Config.
const (
	// defaultExe is this program, even if an upgrade has replaced its file.
	defaultExe = "/proc/self/exe"
	// defaultIdle leaves an agent time to be started again. Nothing is lost afterwards: exits are in the record.
	defaultIdle = 30 * time.Second
)

// startTime bounds how long a new keeper may take to be ready. Tens of milliseconds are usual; on a machine with a busy
// processor and disk it took ten seconds.
const startTime = 30 * time.Second

// keeperEnv is a keeper's whole environment, for few threads. The runtime need not look for the cgroup's limit of
// processors.
var keeperEnv = []string{"GOMAXPROCS=2", "GODEBUG=containermaxprocs=0"}

// Config says how to start a keeper. Dir is required.
type Config struct {
	// Dir is the allocation directory, absolute. It exists and only our user may write to it.
	Dir string

	// Marker is the environment entry that every process of the allocation has, "NOMAD_ALLOC_DIR=" and its directory.
	// Open uses it to find processes that a killed keeper has left running. If it is empty, Open finds them only by
	// cgroup, record and session.
	Marker string

	// Users are the users that tasks may run as, besides this program's own and those in the record.
	Users []uint32

	// Exe is the program whose main calls Main. Empty means this program.
	Exe string

	// Idle is how long the keeper stays with neither task nor client, unless its record can't be written; 0: half a
	// minute.
	Idle time.Duration

	// Unused says that no process of the allocation, and no keeper of the directory, can exist when the first
	// keeper is opened.
	Unused bool

	// Unready is the process of the first keeper, which Open and Supervise take; nil to start one.
	Unready *Unready

	// Handed are sockets that the first keeper is to have; nil for none. Supervise takes them.
	Handed *Handed

	// Tied makes the keeper end, with all tasks, as soon as its client is gone.
	Tied bool

	// Tenure is how long tasks may run; nil for without end.
	Tenure interfaces.Tenure

	// NoCgroup is processes.Config's.
	NoCgroup bool

	// Logger gets a warning when processes of an earlier keeper had to be killed; nil: none.
	Logger *slog.Logger
}

func (cfg Config) log() *slog.Logger { return cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)) }

// Open attaches to the allocation's keeper, or starts one if there is none; attached says which. Before it starts a
// keeper, it kills the processes of an earlier keeper that was killed or can't be found any more. The keeper has a
// session of its own and outlives this program. Errors: those of Attach but ErrNoKeeper; ErrKeeperRuns.
func Open(ctx context.Context, cfg Config) (c *Client, attached bool, err error) {
	nobody := cfg.Unused
	if !nobody {
		c, err = Attach(ctx, cfg.Dir)
		if !errors.Is(err, ErrNoKeeper) {
			return c, err == nil, err
		}
		nobody = errors.Is(err, errNobody)
	}
	c, err = start(ctx, cfg, nobody)
	return c, false, err
}

// errNotStarted: no keeper runs, and one could not be started just now.
var errNotStarted = errors.New("start keeper")

// start starts the allocation's keeper and attaches to it. nobody means that a search has just found no keeper for the
// directory. Errors: errNotStarted when a later attempt may succeed.
func start(ctx context.Context, cfg Config, nobody bool) (*Client, error) {
	spawned := false
	defer func() {
		if cfg.Unready != nil && !spawned {
			cfg.Unready.Close()
		}
	}()
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("start keeper: %q is no absolute path", cfg.Dir)
	}
	last, err := lastEnded(ctx, cfg, nobody)
	if err == nil && !cfg.Unused {
		_, err = last.hints().kill(ctx, cfg)
	}
	_, isCopy := errors.AsType[*CopyError](err)
	if isCopy || errors.Is(err, ErrKeeperRuns) || errors.Is(err, flock.ErrLocked) {
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	spawned = true
	child, err := spawn(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	c, err := Attach(ctx, cfg.Dir)
	if err != nil {
		_ = child.Kill() // ended already, then
		_, _ = child.Wait()
		return nil, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.child = child
	return c, nil
}

// Unready is the process of a keeper that has no settings yet, and waits for them. It has done nothing, and ends with
// this program.
type Unready struct {
	process *os.Process
	in, out *os.File // our ends of its standard input and output
	log     *os.File // its log, from which whyEnded reads
	before  int64    // where its part of the log begins
}

// Prepare starts the process of a keeper for an allocation directory, which exists. Only a Config with Unused may have
// it. The caller closes it unless a Config has it.
func Prepare(dir string) (*Unready, error) { return prepare(Config{Dir: dir}) }

// prepare re-executes the program.
func prepare(cfg Config) (_ *Unready, err error) {
	u := &Unready{}
	defer func() {
		if err != nil {
			u.closeFiles()
		}
	}()
	if u.log, err = privatefile.Open(filepath.Join(cfg.Dir, logFile), os.O_CREATE|os.O_RDWR|os.O_APPEND); err != nil {
		return nil, err
	}
	var in, out *os.File
	if in, u.in, err = os.Pipe(); err != nil {
		return nil, err
	}
	defer in.Close()
	if u.out, out, err = os.Pipe(); err != nil {
		return nil, err
	}
	defer out.Close()
	if u.before, err = u.log.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	processes.CloseOnExec()
	// The keeper is found by these arguments, which others can read.
	args := strings.Split(strings.TrimSuffix(arguments(cfg.Dir), "\x00"), "\x00")
	u.process, err = os.StartProcess(cmp.Or(cfg.Exe, defaultExe), args, &os.ProcAttr{
		Dir: "/", Env: keeperEnv, Files: []*os.File{in, out, u.log}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, processes.NoRoom(err)
	}
	return u, nil
}

// Close ends the process, and waits for its end.
func (u *Unready) Close() {
	u.closeFiles()
	_ = u.process.Kill()
	_, _ = u.process.Wait()
}

func (u *Unready) closeFiles() {
	for _, f := range []*os.File{u.in, u.out, u.log} {
		if f != nil {
			f.Close()
		}
	}
}

// spawn starts a keeper's process, unless there is one, gives it its settings, and waits until it is ready.
func spawn(ctx context.Context, cfg Config) (*os.Process, error) {
	u := cfg.Unready
	if u == nil {
		var err error
		if u, err = prepare(cfg); err != nil {
			return nil, err
		}
	}
	defer u.closeFiles()
	set := settings{Dir: cfg.Dir, Idle: cmp.Or(cfg.Idle, defaultIdle), Tied: cfg.Tied, NoCgroup: cfg.NoCgroup}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = u.out.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err := json.NewEncoder(u.in).Encode(set)
	if err == nil {
		err = readReady(u.out)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) {
		defer time.AfterFunc(exitTime, func() { _ = u.process.Kill() }).Stop()
		state, _ := u.process.Wait()
		said, _ := io.ReadAll(io.NewSectionReader(u.log, u.before, maxLog))
		return nil, fmt.Errorf("it ended without a word (%v): %s", state, whyEnded(string(said)))
	}
	if err != nil {
		_ = u.process.Kill()
		_, _ = u.process.Wait()
		return nil, errors.Join(err, ctx.Err())
	}
	return u.process, nil
}

// whyEnded returns why a keeper ended, from the lines in its log. Go's runtime begins its report with the reason.
func whyEnded(said string) string {
	line, _, _ := strings.Cut(said, "\n")
	has := func(word string) bool { return strings.Contains(said, word) }
	switch {
	case slices.ContainsFunc([]string{"pthread_create failed", "failed to create new OS thread"}, has):
		return "no room for another thread: raise the limit of processes (RLIMIT_NPROC, or pids.max of the cgroup): " +
			line
	case slices.ContainsFunc([]string{"out of memory", "cannot allocate memory", "failed to reserve",
		"failed to allocate"}, has):
		return "no memory: raise the limit of memory (RLIMIT_AS, or memory.max of the cgroup): " + line
	}
	return cmp.Or(line, logFile+" says nothing; the kernel's log names what it has killed for want of memory")
}

// Attach takes control of the keeper that runs for the allocation in dir; an earlier client gets ErrReplaced. The
// process that answers on the directory's socket is the keeper, also where /proc does not show it. Errors: ErrNoKeeper
// (Last then says what is known of its tasks), *CopyError, ErrVersion, or that a keeper runs but does not answer.
func Attach(ctx context.Context, dir string) (*Client, error) {
	c, err := connect(ctx, dir)
	if err == nil {
		return c, nil
	}
	patience := time.Duration(0)
	unreachable := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
	switch {
	case unreachable: // the socket is gone, perhaps since the keeper ends
		patience = endPoll
	case endsNow(err):
		patience = exitTime
	}
	ids, _, findErr := keepers(dir)
	if findErr != nil {
		return nil, findErr
	}
	runs := false
	for _, id := range ids {
		runs = !id.Await(patience) || runs
	}
	switch {
	case len(ids) == 0 && unreachable:
		return nil, fmt.Errorf("attach to keeper in %s: %w", dir, errNobody)
	case unreachable, !runs && endsNow(err):
		return nil, fmt.Errorf("attach to keeper in %s: %w that can be reached: %w", dir, ErrNoKeeper, err)
	}
	return nil, fmt.Errorf("attach to keeper in %s: %w", dir, err)
}

// errNobody is ErrNoKeeper after a search of all processes.
var errNobody = fmt.Errorf("%w", ErrNoKeeper)

// endsNow reports whether err is the error of a connection to a keeper that is about to end.
func endsNow(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// connect connects to the keeper of a directory, and says hello.
func connect(ctx context.Context, dir string) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	var conn *net.UnixConn
	err := inDir(dir, func(path string) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			conn = c.(*net.UnixConn)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	c, err := greet(ctx, conn)
	if err != nil {
		conn.Close()
	}
	return c, err
}

func greet(ctx context.Context, conn *net.UnixConn) (*Client, error) {
	peer, err := peercred.Of(conn)
	if err != nil {
		return nil, err
	}
	if peer.UID != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("the socket belongs to process %d of user %d", peer.PID, peer.UID)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := (&frameWriter{w: conn}).write(hello{Version: version}); err != nil {
		return nil, fmt.Errorf("process %d: %w", peer.PID, err)
	}
	in := &requestReader{conn: conn}
	in.in = bufio.NewReader(filesReader{in})
	var theirs hello
	if err := readFrame(in.in, &theirs); err != nil {
		return nil, fmt.Errorf("process %d does not answer: %w", peer.PID, err)
	}
	if theirs.Version != version {
		return nil, fmt.Errorf("process %d speaks version %d, this program %d: %w",
			peer.PID, theirs.Version, version, ErrVersion)
	}
	if id := theirs.Keeper; id.PID != int(peer.PID) {
		return nil, fmt.Errorf("process %d says that it is process %d: another container or PID namespace has the allocation",
			peer.PID, id.PID)
	}
	return newClient(conn, in, theirs.Keeper), nil
}
