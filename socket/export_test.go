package socket

import (
	"errors"
	"net"
)

// FailPeers makes the credentials of the next n connections unreadable. Call it before Accept.
func (l *Listener) FailPeers(n int) {
	l.readPeer = func(c *net.UnixConn) (Peer, error) {
		if n--; n >= 0 {
			return Peer{}, errors.New("unreadable")
		}
		return readPeer(c)
	}
}

// The times that a refused client has: to begin its request, and then to read its answer.
const (
	RequestTime = requestTime
	LingerTime  = lingerTime
)

// BacklogTime is how long Close waits until connections are accepted.
const BacklogTime = backlogTime

// ReadPeer is how a Listener reads credentials.
var ReadPeer = readPeer
