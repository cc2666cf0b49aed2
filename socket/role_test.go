package socket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/socket"
)

// A role is what the test binary does when a test starts it as another process: ROLE PATH in roleEnv.
const roleEnv = "SOCKET_TEST_ROLE"

// The roles print these words, or the error.
const (
	wordConnected = "connected"
	wordListening = "listening"
)

func playRole(role string) int {
	verb, path, _ := strings.Cut(role, " ")
	var err error
	switch verb {
	case "dial":
		err = roleDial(path)
	case "listen":
		err = roleListen(path)
	case "starve":
		err = roleStarve(path)
	default:
		err = fmt.Errorf("no role %q", verb)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// roleDial connects and waits to be closed.
func roleDial(path string) error {
	c, err := socket.Dial(context.Background(), path)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println(wordConnected)
	_, err = io.Copy(io.Discard, c)
	return err
}

// roleListen listens until its input ends.
func roleListen(path string) error {
	l, err := socket.Listen(socket.Config{Path: path, UID: -1, GID: -1})
	if err != nil {
		return err
	}
	fmt.Println(wordListening)
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, l.Close())
}

// roleStarve accepts while it has no descriptor left; each line of its input is one more descriptor for it.
func roleStarve(path string) error {
	l, err := socket.Listen(socket.Config{Path: path, UID: -1, GID: -1})
	if err != nil {
		return err
	}
	defer l.Close()
	var files []*os.File
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	for {
		f, err := os.Open("/dev/null")
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	fmt.Println(wordListening)
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			fmt.Println(err)
		}
		accepted <- c
	}()
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	select {
	case <-accepted:
		return errors.New("accepted without a descriptor")
	default:
	}
	for _, f := range files {
		f.Close()
	}
	c := <-accepted
	if c == nil {
		return errors.New("accept gave up")
	}
	_, err = io.WriteString(c, "alive")
	return errors.Join(err, c.Close())
}

// process is this test binary in another role.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *os.File
}

// newRole starts the test binary as uid and returns it with the first line that it prints. The binary is
// copied to where every user may run it.
func newRole(t *testing.T, uid int, role string) (*process, string) {
	t.Helper()
	cmd := exec.Command(sharedBinary(t))
	cmd.Env = []string{roleEnv + "=" + role}
	if uid != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	stdin := must.Get(cmd.StdinPipe())(t)
	r, w, err := os.Pipe()
	must.OK(t, err)
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	must.OK(t, cmd.Start())
	w.Close()
	p := &process{cmd: cmd, stdin: stdin, out: r}
	t.Cleanup(func() { p.kill() })
	return p, p.line(t)
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	_ = p.out.SetReadDeadline(time.Now().Add(polltest.Deadline()))
	var line bytes.Buffer
	for b := make([]byte, 1); ; {
		if _, err := p.out.Read(b); err != nil {
			t.Fatalf("the other process said %q, then %v", line.String(), err)
		}
		if b[0] == '\n' {
			return line.String()
		}
		line.WriteByte(b[0])
	}
}

func (p *process) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = p.out.Close()
}

func sharedBinary(t *testing.T) string {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	content := must.Read(t, exe)
	path := filepath.Join(newOpenDir(t), "test-"+strconv.Itoa(os.Getpid()))
	must.Program(t, path, content)
	return path
}

// newOpenDir returns a directory that every user may pass, as t.TempDir is not.
func newOpenDir(t *testing.T) string {
	t.Helper()
	dir := must.ShortDir(t)
	must.OK(t, os.Chmod(dir, 0o755))
	return dir
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
}
