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
	b := &bounded{Listener: tls.NewListener(inner, t.config), accepted: make(chan accepted), closed: make(chan struct{}),
		shaking: map[netip.Prefix]int{}}
	go b.run() // ends with Close
	return b, nil
}

// shakeTime bounds how long a client may take to show its certificate.
const shakeTime = 10 * time.Second

// mostShaking bounds the connections from one network that have not shown a certificate yet, so that one stranger does
// not take all connections.
const mostShaking = 32

// bounded returns connections whose clients have shown a certificate, and closes those that come while too many are
// open.
type bounded struct {
	net.Listener
	open     atomic.Int64
	accepted chan accepted
	closed   chan struct{}
	once     sync.Once

	mu      sync.Mutex
	shaking map[netip.Prefix]int // the connections that have shown no certificate yet; guarded by mu
}

// accepted is a connection, or why there is none.
type accepted struct {
	conn *remote
	err  error
}

func (b *bounded) run() {
	for {
		conn, err := b.Listener.Accept()
		switch {
		case err != nil:
			if !b.give(accepted{err: err}) {
				return
			}
		case b.open.Add(1) > mostConnections:
			b.open.Add(-1)
			conn.Close()
		default:
			r := &remote{Conn: conn.(*tls.Conn), left: sync.OnceFunc(func() { b.open.Add(-1) })}
			from := peercred.NetworkOf(conn.RemoteAddr().String())
			if !b.enter(from) {
				r.Close()
				continue
			}
			go func() { // ends within shakeTime, or when the connection is accepted or the listener closed
				defer b.leave(from)
				b.shake(r)
			}()
		}
	}
}

func (b *bounded) enter(from netip.Prefix) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shaking[from] == mostShaking {
		return false
	}
	b.shaking[from]++
	return true
}

func (b *bounded) leave(from netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shaking[from]--; b.shaking[from] == 0 {
		delete(b.shaking, from)
	}
}

// shake has a client show its certificate.
func (b *bounded) shake(r *remote) {
	ctx, cancel := context.WithTimeout(context.Background(), shakeTime)
	defer cancel()
	if err := r.HandshakeContext(ctx); err != nil || !b.give(accepted{conn: r}) {
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
	select {
	case a := <-b.accepted:
		if a.err != nil {
			return nil, a.err
		}
		return a.conn, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

// remote is a connection from another machine.
type remote struct {
	*tls.Conn
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
