package socket_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"taskapi/internal/must"
	"taskapi/socket"
)

// TestHandOver: who connects between two listeners waits for the next, and the file stays until that is closed.
func TestHandOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	first := newListener(t, socket.Config{Path: path, UID: -1, GID: -1})
	roundTrip(t, first, path)
	between, err := first.HandOver()
	if err == nil {
		err = first.Close()
	}
	must.OK(t, err)
	client, err := socket.Dial(t.Context(), path)
	if err != nil {
		t.Fatalf("between two listeners: %v", err)
	}
	defer client.Close()
	must.Get(client.Write([]byte("?")))(t)
	second := between.Listen(socket.Config{Path: path})
	server := must.Get(second.Accept())(t)
	defer server.Close()
	sent := make([]byte, 1)
	if _, err := server.Read(sent); err != nil || sent[0] != '?' {
		t.Errorf("the one who waited sent %q, %v", sent, err)
	}
	roundTrip(t, second, path)
	if peer := server.(*socket.Conn).Peer(); peer.PID != int32(os.Getpid()) {
		t.Errorf("the peer is process %d", peer.PID)
	}
	if between, err = second.HandOver(); err == nil {
		err = errors.Join(second.Close(), between.Close())
	}
	if _, missing := os.Lstat(path); err != nil || !errors.Is(missing, fs.ErrNotExist) {
		t.Errorf("a handover that nobody takes: %v; its file: %v, want none", err, missing)
	}
	newListener(t, socket.Config{Path: path, UID: -1, GID: -1}) // the place is free
}
