package machine

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/auth"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/internal/peercred"
	"taskapi/internal/safedir"
)

// TLS says where to answer clients of other machines, which must have a certificate of the authority and the token.
type TLS struct {
	Address       string // HOST:PORT
	Cert, Key, CA string // files
	config        *tls.Config
}

// Open reads the files. Errors: what is wrong with the address or a file.
func (t *TLS) Open() error {
	if _, _, err := net.SplitHostPort(t.Address); err != nil {
		return fmt.Errorf("%q is no address with a port: give one such as 192.0.2.1:4646", t.Address)
	}
	if err := safedir.TrustFile(t.Key); err != nil {
		return fmt.Errorf("key %s: %w", t.Key, agent.UnwrapPath(err))
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return fmt.Errorf("certificate %s with the key %s: %w", t.Cert, t.Key, err)
	}
	authority, err := os.ReadFile(t.CA)
	if err != nil {
		return fmt.Errorf("authority %s: %w", t.CA, agent.UnwrapPath(err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return fmt.Errorf("authority %s: there is no certificate in it: give a file in PEM form", t.CA)
	}
	t.config = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
	}
	return nil
}

func (t *TLS) listen() (net.Listener, error) {
	inner, err := net.Listen("tcp", t.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", t.Address, errors.Unwrap(err))
	}
	b := &bounded{Listener: tls.NewListener(inner, t.config), accepted: make(chan accepted), closed: make(chan struct{})}
	go b.run() // ends with Close
	return b, nil
}

// shakeTime bounds how long a client may take to show its certificate.
const shakeTime = 10 * time.Second

// mostShaking bounds the connections that have not shown a certificate yet. They have this budget for themselves: no
// stranger takes the place of a client with a certificate.
const mostShaking = 256

// bounded returns connections whose clients have shown a certificate, at most mostConnections at a time.
type bounded struct {
	net.Listener
	open     atomic.Int64
	room     func() bool // closes one of the open connections; nil before MakeRoom
	accepted chan accepted
	closed   chan struct{}
	once     sync.Once

	mu      sync.Mutex
	shaking []*remote // the connections that have shown no certificate yet, the oldest first; guarded by mu
}

// accepted is a connection, or why there is none.
type accepted struct {
	conn *remote
	err  error
}

func (b *bounded) run() {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			if !b.give(accepted{err: err}) {
				return
			}
			continue
		}
		r := &remote{Conn: conn.(*tls.Conn), from: peercred.NetworkOf(conn.RemoteAddr().String()), left: func() {}}
		b.enter(r)
		go b.shake(r) // ends within shakeTime, or when the connection is accepted or the listener closed
	}
}

// enter adds a connection that has shown no certificate. If there are too many, it closes the oldest connection of the
// network that has most.
func (b *bounded) enter(r *remote) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shaking = append(b.shaking, r)
	if len(b.shaking) <= mostShaking {
		return
	}
	counts := map[netip.Prefix]int{}
	most := 0
	for _, other := range b.shaking {
		counts[other.from]++
		most = max(most, counts[other.from])
	}
	oldest := slices.IndexFunc(b.shaking, func(other *remote) bool { return counts[other.from] == most })
	b.shaking[oldest].Close()
	b.shaking = slices.Delete(b.shaking, oldest, oldest+1)
}

func (b *bounded) leave(r *remote) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shaking = slices.DeleteFunc(b.shaking, func(other *remote) bool { return other == r })
}

// MakeRoom lets a new connection take the place of another one when all are taken: room then closes one, or reports
// false. It is called before Accept.
func (b *bounded) MakeRoom(room func() bool) { b.room = room }

// acquire takes a place for a connection whose client has shown a certificate.
func (b *bounded) acquire() bool {
	if b.open.Add(1) <= mostConnections {
		return true
	}
	b.open.Add(-1)
	return false
}

// shake has a client show its certificate, and gives the connection to Accept.
func (b *bounded) shake(r *remote) {
	ctx, cancel := context.WithTimeout(context.Background(), shakeTime)
	defer cancel()
	err := r.HandshakeContext(ctx)
	b.leave(r)
	if err != nil || !b.give(accepted{conn: r}) {
		r.Close()
	}
}

// give returns false when the listener is closed.
func (b *bounded) give(a accepted) bool {
	select {
	case b.accepted <- a:
		return true
	case <-b.closed:
		return false
	}
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		select {
		case a := <-b.accepted:
			if a.err != nil {
				return nil, a.err
			}
			if b.acquire() || b.room != nil && b.room() && b.acquire() {
				a.conn.left = sync.OnceFunc(func() { b.open.Add(-1) })
				return a.conn, nil
			}
			a.conn.Close()
		case <-b.closed:
			return nil, net.ErrClosed
		}
	}
}

func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

// remote is a connection from another machine.
type remote struct {
	*tls.Conn
	from netip.Prefix // the client's network
	left func()
}

func (r *remote) Close() error {
	r.left()
	return r.Conn.Close()
}

// peerOf returns the process at the other end of a connection. A client of another machine has shown a certificate: for
// the authenticator, it is this process's user.
func peerOf(c net.Conn) (auth.Peer, error) {
	r, ok := c.(*remote)
	if !ok {
		return agent.PeerOf(c)
	}
	shown := r.ConnectionState().PeerCertificates[0]
	name := cmp.Or(shown.Subject.CommonName, strings.Join(shown.DNSNames, ","), "serial "+shown.SerialNumber.String())
	return auth.Peer{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Address: r.RemoteAddr().String(),
		Certificate: name}, nil
}
