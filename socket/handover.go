package socket

import (
	"fmt"
	"net"
)

// Handover is a socket between two listeners of a process: connections wait until the next listener accepts them. Use
// it once, for Listen or for Close.
type Handover struct {
	path  string
	inner *net.UnixListener
	dir   directory
	id    fileID
}

// HandOver keeps the socket and its file when the listener is closed. Errors: those of the operating system; then
// nothing has changed.
func (l *Listener) HandOver() (*Handover, error) {
	file, err := l.inner.File()
	if err != nil {
		return nil, fmt.Errorf("hand over %q: %w", l.path, err)
	}
	defer file.Close()
	inner, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("hand over %q: %w", l.path, err)
	}
	l.handedOver.Store(true)
	return &Handover{l.path, inner.(*net.UnixListener), l.dir, l.id}, nil
}

// Listen accepts the waiting connections and later ones, as a new Listener of the same path would. Mode and owner of
// the file stay.
func (h *Handover) Listen(cfg Config) *Listener {
	return newListener(cfg.withDefaults(), h.inner, h.dir, h.id)
}

// Close ends the socket and removes its file. Waiting connections are cut off.
func (h *Handover) Close() error { return h.Listen(Config{Path: h.path}).Close() }
