package machine

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"

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

// Open reads the files, and returns what is wrong with them.
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
	return &bounded{Listener: tls.NewListener(inner, t.config)}, nil
}

// bounded closes a connection that comes while too many are open.
type bounded struct {
	net.Listener
	open atomic.Int64
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if b.open.Add(1) <= mostConnections {
			return &remote{Conn: conn.(*tls.Conn), left: sync.OnceFunc(func() { b.open.Add(-1) })}, nil
		}
		b.open.Add(-1)
		conn.Close()
	}
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

// peerOf returns the process at the other end of a connection. One of another machine has shown a certificate before
// its first byte is read: for the authenticator, it is this process's user.
func peerOf(c net.Conn) (auth.Peer, error) {
	if _, ok := c.(*remote); ok {
		return peercred.Cred{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, nil
	}
	return agent.PeerOf(c)
}
