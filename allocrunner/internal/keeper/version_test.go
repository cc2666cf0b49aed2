package keeper_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/keeper"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func writeFrame(w io.Writer, text string) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

func readFrame(r io.Reader) (got map[string]any, err error) {
	var n uint32
	if err := binary.Read(r, binary.BigEndian, &n); err != nil {
		return nil, err
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	return got, json.Unmarshal(text, &got)
}

// actAsKeeper has this process act as the keeper of a directory, for one connection.
func actAsKeeper(t *testing.T, dir string, act func(net.Conn) error) (acted <-chan error) {
	t.Helper()
	self := identify(t, os.Getpid())
	var here unix.Stat_t
	must.OK(t, unix.Stat(dir, &here))
	record := fmt.Sprintf(`{"Keeper":{"PID":%d,"Start":%d,"Boot":%q},"Dir":{"Device":%d,"Inode":%d}}`,
		self.PID, self.Start, self.Boot, here.Dev, here.Ino)
	must.OK(t, os.WriteFile(filepath.Join(dir, "keeper.json"), []byte(record), 0o600))
	l := must.Get(net.Listen("unix", filepath.Join(dir, "keeper.sock")))(t)
	t.Cleanup(func() { l.Close() })
	result := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			defer conn.Close()
			_, err = readFrame(conn)
		}
		if err == nil {
			err = act(conn)
		}
		result <- err
	}()
	return result
}

// TestAnotherKeepersVersion is refused, and says what to do.
func TestAnotherKeepersVersion(t *testing.T) {
	dir := t.TempDir()
	served := actAsKeeper(t, dir, func(conn net.Conn) error { return writeFrame(conn, `{"Version":99,"Mood":"sunny"}`) })
	_, err := keeper.Attach(t.Context(), dir)
	same.Says(t, keeper.ErrVersion, "speaks version 99", err, "version 99")
	must.OK(t, <-served)
}

// TestATerminalForAnEarlierKeeper is in the request and not in its spec, which such a keeper would refuse.
func TestATerminalForAnEarlierKeeper(t *testing.T) {
	dir := t.TempDir()
	self := identify(t, os.Getpid())
	asked := make(chan map[string]any, 1)
	served := actAsKeeper(t, dir, func(conn net.Conn) error {
		err := writeFrame(conn, fmt.Sprintf(`{"Version":3,"Keeper":{"PID":%d,"Start":%d,"Boot":%q}}`,
			self.PID, self.Start, self.Boot))
		if err != nil {
			return err
		}
		got, err := readFrame(conn)
		asked <- got
		return errors.Join(err, writeFrame(conn, `{"ID":1,"Exec":{}}`))
	})
	c, err := keeper.Attach(t.Context(), dir)
	must.OK(t, err)
	_, slave := pty(t)
	_, err = c.Exec(t.Context(), interactive(dir, "tty", true, slave, dup(t, slave), dup(t, slave)))
	must.OK(t, errors.Join(err, c.Detach(), <-served))
	got := <-asked
	if spec, _ := got["Spec"].(map[string]any); got["TTY"] != true || spec["TTY"] != nil {
		t.Errorf("%v", got)
	}
}

// TestAnotherClientsVersion gets the keeper's, and does not take control of it.
func TestAnotherClientsVersion(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	conn := must.Get(net.Dial("unix", filepath.Join(dir, "keeper.sock")))(t)
	defer conn.Close()
	must.OK(t, writeFrame(conn, `{"Version":99}`))
	if got, err := readFrame(conn); err != nil || got["Version"] != 3.0 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := readFrame(conn); !errors.Is(err, io.EOF) {
		t.Errorf("%v, %v; want the end", got, err)
	}
	same.Error(t, nil, same.Err(c.List(t.Context())), "the client before")
}

// TestAnUnknownRequest is refused alone.
func TestAnUnknownRequest(t *testing.T) {
	dir := t.TempDir()
	start(t, keeper.Config{Dir: dir})
	conn := must.Get(net.Dial("unix", filepath.Join(dir, "keeper.sock")))(t)
	defer conn.Close()
	for _, text := range []string{`{"Version":3}`, `{"ID":1,"Op":"dance"}`, `{"ID":2,"Op":"list"}`} {
		must.OK(t, writeFrame(conn, text))
		got := must.Get(readFrame(conn))(t)
		refused := strings.Contains(fmt.Sprint(got["Err"]), `unknown operation "dance"`)
		if refused != (got["ID"] == 1.0) {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestAnEarlierConnection does not take the keeper from a client that came later: while the keeper was frozen its
// client has given up one attempt after the other, and all of them are found at once.
func TestAnEarlierConnection(t *testing.T) {
	dir := t.TempDir()
	first := start(t, keeper.Config{Dir: dir})
	pid := first.Keeper().PID
	freeze(t, pid)
	defer unix.Kill(pid, unix.SIGCONT)
	var ended sync.WaitGroup
	for range 20 {
		conn := must.Get(net.Dial("unix", filepath.Join(dir, "keeper.sock")))(t)
		defer conn.Close()
		must.OK(t, writeFrame(conn, `{"Version":3}`))
		ended.Go(func() { _, _ = io.Copy(io.Discard, conn) })
	}
	before := unread(t, pid)
	attached := make(chan *keeper.Client, 1)
	go func() {
		c, err := keeper.Attach(t.Context(), dir)
		if err != nil {
			t.Error(err)
		}
		attached <- c
	}()
	for unread(t, pid) == before {
		unix.Poll(nil, 2)
	}
	must.OK(t, unix.Kill(pid, unix.SIGCONT))
	latest := <-attached
	if latest == nil {
		return
	}
	closeLater(t, latest)
	others := make(chan struct{})
	go func() {
		ended.Wait()
		close(others)
	}()
	select {
	case <-others:
	case <-latest.Done():
	}
	same.Error(t, nil, same.Err(latest.List(t.Context())), "the client that came last")
}
