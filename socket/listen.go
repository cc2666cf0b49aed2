package socket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"taskapi/internal/safedir"
)

// The errors of Listen, ShortLink and Dial; any other is the operating system's.
var (
	// ErrInvalid means that an argument can never work.
	ErrInvalid = errors.New("invalid argument")
	// ErrInUse means that another process listens on the socket, or is about to.
	ErrInUse = errors.New("socket in use")
	// ErrInTheWay means that a file other than a stale socket of this user is at the path.
	ErrInTheWay = errors.New("another file is in the way")
	// ErrUnsafe means that another user could tamper with the directory.
	ErrUnsafe = safedir.ErrUnsafe
	// ErrUndialable means that ordinary clients can dial no address of the socket.
	ErrUndialable = errors.New("no address that clients can dial")
)

const (
	// defaultMode lets only the owner connect.
	defaultMode os.FileMode = 0o600
	// defaultMaxConns leaves room for a busy task with many streams. A connection that net/http serves costs some 15 kB,
	// so a full socket costs about 4 MB.
	defaultMaxConns = 256
	// maxRefusal fits many times into the empty send buffer of a new connection (212,992 bytes by default, socket(7)), so
	// writing a refusal does not block.
	maxRefusal = 4096
	// maxSunPath is the size of sun_path in struct sockaddr_un, less the NUL at its end (unix(7)).
	maxSunPath = 107
	// maxName is NAME_MAX on every file system of Linux, in bytes.
	maxName = 255
)

// Config says where and how to listen.
type Config struct {
	// Path of the socket file; required, absolute and clean (filepath.Clean changes nothing). The directory must exist and
	// belong to root, to this process's user or to UID. Nobody else may be able to write to it, unless it is sticky.
	Path string
	// Mode of the socket file: permission bits only; 0 means 0600. Only users who may write to the file can connect.
	Mode os.FileMode
	// UID and GID own the socket file; -1 means those of this process. Only root can give a socket away.
	UID, GID int
	// MaxConns is how many connections may be open at once on this socket; 0 means 256.
	MaxConns int
	// Share is this socket's part of the connections that several sockets may have together; nil means no such limit.
	Share *Share
	// Refusal is written to a connection over a limit before it is closed, as a rule after the client has begun to send.
	// It has at most 4,096 bytes.
	Refusal []byte
	// Logger may be nil.
	Logger *slog.Logger
}

// Listen makes the socket and starts to listen. A stale socket at the path is replaced; a live one is ErrInUse; any
// other file is ErrInTheWay and stays. ErrUnsafe and ErrInvalid name what to change.
func Listen(cfg Config) (*Listener, error) {
	l, err := listen(cfg.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", cfg.Path, err)
	}
	return l, nil
}

func listen(cfg Config) (_ *Listener, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	dir, err := openDir(filepath.Dir(cfg.Path))
	if err != nil {
		return nil, err
	}
	defer closeOnError(dir, &err)
	if err := dir.CheckSafe(cfg.UID); err != nil {
		return nil, err
	}
	staging, err := newStagingDir(dir, filepath.Base(cfg.Path))
	if err != nil {
		return nil, err
	}
	defer staging.close()

	inner, err := bindIn(staging, cfg)
	if err != nil {
		return nil, err
	}
	defer closeOnError(inner, &err)
	id, err := staging.setOwner(cfg)
	if err != nil {
		return nil, err
	}
	if err := staging.publish(id); err != nil {
		return nil, err
	}
	return newListener(cfg, inner, dir, id), nil
}

// bindIn listens on a socket in the staging directory, which nobody else can enter.
func bindIn(n *stagingDir, cfg Config) (*net.UnixListener, error) {
	lc := net.ListenConfig{
		// The file gets the mode of the socket's inode, less the umask, so it is tight even before setOwner makes it exact.
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), uint32(cfg.Mode)) }); cerr != nil {
				return cerr
			}
			return err
		},
	}
	ln, err := lc.Listen(context.Background(), "unix", n.dir.procPath(n.child))
	if err != nil {
		return nil, fmt.Errorf("bind (is /proc mounted?): %w", err)
	}
	inner := ln.(*net.UnixListener)
	// The Listener removes the file itself, since Go would unlink any file at the path.
	inner.SetUnlinkOnClose(false)
	return inner, nil
}

func (cfg Config) withDefaults() Config {
	cfg.Mode, cfg.MaxConns = cmp.Or(cfg.Mode, defaultMode), cmp.Or(cfg.MaxConns, defaultMaxConns)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.UID == -1 {
		cfg.UID = os.Geteuid()
	}
	if cfg.GID == -1 {
		cfg.GID = os.Getegid()
	}
	return cfg
}

func (cfg Config) check() error {
	switch {
	case cfg.Mode&^os.ModePerm != 0:
		return fmt.Errorf("%w: mode %v holds more than permission bits", ErrInvalid, cfg.Mode)
	case cfg.MaxConns < 0:
		return fmt.Errorf("%w: MaxConns is %d, which is negative", ErrInvalid, cfg.MaxConns)
	case cfg.UID < 0 || cfg.GID < 0:
		return fmt.Errorf("%w: owner %d:%d (use -1 for the user and group of this process)", ErrInvalid, cfg.UID, cfg.GID)
	case len(cfg.Refusal) > maxRefusal:
		return fmt.Errorf("%w: a refusal of %d bytes; at most %d", ErrInvalid, len(cfg.Refusal), maxRefusal)
	}
	return checkPath(cfg.Path)
}

func checkPath(path string) error {
	name := filepath.Base(path)
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/":
		return fmt.Errorf("%w: the path of a socket is absolute and clean, such as %q", ErrInvalid, "/run/app/api.sock")
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%w: the path holds a NUL byte", ErrInvalid)
	case len(name) > maxName:
		return fmt.Errorf("%w: a file name of %d bytes; at most %d", ErrInvalid, len(name), maxName)
	}
	return nil
}
