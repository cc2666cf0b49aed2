// Package etcdtest starts real etcd servers for tests. Debian's package etcd-server has the program.
package etcdtest

import (
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
)

// Node is one etcd server.
type Node struct {
	Client string // HOST:PORT
	Peer   string
	cmd    []string
	log    string
	Proc   proctest.Child
}

// Open opens the store of some servers. The caller closes it.
func Open(nodes ...*Node) *etcd.Store { return etcd.New(Config(nodes...)) }

// Config returns the settings of the store of some servers.
func Config(nodes ...*Node) etcd.Config {
	var c client.Config
	for _, n := range nodes {
		c.Endpoints = append(c.Endpoints, "http://"+n.Client)
	}
	return etcd.Config{
		Prefix: "test/",
		Client: func() (client.Config, error) { return c, nil },
		Sealer: func(purpose string) (cluster.Sealer, error) { return Sealer(purpose), nil },
	}
}

// Sealer returns a sealer with a key that is made from a word.
func Sealer(word string) cluster.Sealer {
	key := sha256.Sum256([]byte(word))
	aead, err := chacha20poly1305.NewX(key[:])
	if err != nil {
		panic(err)
	}
	return sealer{aead}
}

type sealer struct{ cipher.AEAD }

func (s sealer) Seal(value []byte, place string) ([]byte, error) {
	nonce := make([]byte, s.NonceSize())
	rand.Read(nonce) // never fails (crypto/rand)
	return s.AEAD.Seal(nonce, nonce, value, []byte(place)), nil
}

func (s sealer) Open(sealed []byte, place string) ([]byte, error) {
	n := min(len(sealed), s.NonceSize())
	if n < s.NonceSize() {
		return nil, errors.New("too short")
	}
	return s.AEAD.Open(nil, sealed[:n], sealed[n:], []byte(place))
}

// Path returns the program. It skips the test with -short, and where the program isn't installed.
func Path(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("make e2e runs etcd")
	}
	path, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("etcd is not installed: apt-get install etcd-server")
	}
	return path
}

// Start starts a cluster of n servers on loopback addresses, with an empty directory each, and waits until they have a
// leader. They take large requests, as the bounds of cluster.Store need, and don't sync their files.
func Start(t testing.TB, n int, flags ...string) []*Node {
	t.Helper()
	path, dir := Path(t), t.TempDir()
	nodes := make([]*Node, n)
	var peers []string
	for i := range nodes {
		nodes[i] = &Node{Client: address(t), Peer: address(t), log: filepath.Join(dir, fmt.Sprintf("log%d", i))}
		peers = append(peers, fmt.Sprintf("n%d=http://%s", i, nodes[i].Peer))
	}
	scheme := "http://"
	if slices.Contains(flags, "--cert-file") {
		scheme = "https://"
	}
	for i, node := range nodes {
		node.cmd = append([]string{path,
			"--name", fmt.Sprintf("n%d", i), "--data-dir", filepath.Join(dir, fmt.Sprintf("d%d", i)),
			"--listen-client-urls", scheme + node.Client, "--advertise-client-urls", scheme + node.Client,
			"--listen-peer-urls", "http://" + node.Peer, "--initial-advertise-peer-urls", "http://" + node.Peer,
			"--initial-cluster", strings.Join(peers, ","), "--unsafe-no-fsync", "--max-request-bytes", "8388608",
			"--logger", "zap", "--log-level", "error"}, flags...)
		node.Run(t)
	}
	for _, node := range nodes {
		node.Ready(t)
	}
	return nodes
}

// Run starts the server, for the first time or again.
func (n *Node) Run(t testing.TB) {
	t.Helper()
	cmd := exec.Command(n.cmd[0], append(n.cmd[1:], "--log-outputs", n.log)...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
	cmd.Stderr = io.Discard
	n.Proc = proctest.Start(t, cmd)
}

// Restore kills the server, and starts it again with the files that Backup has returned.
func (n *Node) Restore(t testing.TB, backup string) {
	t.Helper()
	n.again(t, backup, n.dir())
}

// Backup kills the server, starts it again, and returns a copy of its files.
func (n *Node) Backup(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	n.again(t, n.dir(), dir)
	return dir
}

func (n *Node) dir() string { return n.cmd[slices.Index(n.cmd, "--data-dir")+1] }

// again starts the server again. While it does not run, the files in one directory replace those in another.
func (n *Node) again(t testing.TB, from, to string) {
	t.Helper()
	n.Proc.Kill()
	must.OK(t, os.RemoveAll(to))
	must.OK(t, os.CopyFS(to, os.DirFS(from)))
	must.OK(t, os.Chmod(to, 0o700))
	n.Run(t)
	n.Ready(t)
}

// Ready waits until the server accepts connections, which it does once there is a leader.
func (n *Node) Ready(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // between looks
		conn, err := net.Dial("tcp", n.Client)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(n.log)
			t.Fatal(errors.Join(err, errors.New(string(log))))
		}
	}
}

// Signal sends a signal to the server. A server that gets SIGSTOP has stopped when Signal returns.
func (n *Node) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	must.OK(t, n.Proc.Process.Signal(s))
	if s == syscall.SIGSTOP {
		must.OK(t, unix.Waitid(unix.P_PID, n.Proc.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
	}
}

// Leader returns which of the servers leads the others, by one of those that answer.
func Leader(t testing.TB, nodes ...*Node) int {
	t.Helper()
	names := make([]string, len(nodes))
	leader := ""
	for i, n := range nodes {
		c := http.Client{Timeout: 5 * time.Second}
		r, err := c.Post("http://"+n.Client+"/v3/maintenance/status", "application/json", strings.NewReader("{}"))
		if err != nil {
			continue
		}
		var status struct {
			Header struct {
				Member string `json:"member_id"`
			} `json:"header"`
			Leader string `json:"leader"`
		}
		err = json.NewDecoder(r.Body).Decode(&status)
		r.Body.Close()
		c.CloseIdleConnections()
		must.OK(t, err)
		names[i], leader = status.Header.Member, status.Leader
	}
	for i, name := range names {
		if name != "" && name == leader {
			return i
		}
	}
	t.Fatalf("none of %q leads: %q", names, leader)
	return 0
}

// Proxy passes connections on to a server until it is cut off.
type Proxy struct {
	Node

	mu    sync.Mutex // guards the fields below
	to    string
	cut   bool
	conns map[net.Conn]struct{}
}

// Through returns a proxy before a server. Its Client is the proxy's address.
func Through(t testing.TB, n *Node) *Proxy {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := &Proxy{Node: Node{Client: l.Addr().String()}, to: n.Client, conns: map[net.Conn]struct{}{}}
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			ended.Go(func() { p.pass(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.Cut(true)
		ended.Wait()
	})
	return p
}

// Cut ends all connections, and refuses others until it is called with false.
func (p *Proxy) Cut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	for conn := range p.conns {
		conn.Close()
	}
}

// To ends all connections, and passes others on to another server.
func (p *Proxy) To(n *Node) {
	p.mu.Lock()
	p.to = n.Client
	p.mu.Unlock()
	p.Cut(false)
}

func (p *Proxy) pass(conn net.Conn) {
	defer conn.Close()
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	other, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer other.Close()
	p.mu.Lock()
	cut := p.cut
	p.conns[conn], p.conns[other] = struct{}{}, struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, conn)
		delete(p.conns, other)
	}()
	if cut {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { _, _ = io.Copy(conn, other); conn.Close() })
	_, _ = io.Copy(other, conn)
	other.Close()
	back.Wait()
}

// Host is the loopback address of the servers. No other process asks the kernel for a port there, and no client has one
// there: a port stays free until its server listens, also while the server is started again.
var Host = net.IPv4(127, random(), random(), random())

// random returns a byte that is neither the first nor the last of a network.
func random() byte { return byte(1 + mathrand.IntN(254)) }

// given are the addresses that this process has handed out.
var given sync.Map

// address returns a loopback address that nobody has.
func address(t testing.TB) string {
	t.Helper()
	for {
		l := must.Get(net.Listen("tcp", net.JoinHostPort(Host.String(), "0")))(t)
		l.Close()
		if _, again := given.LoadOrStore(l.Addr().String(), true); !again {
			return l.Addr().String()
		}
	}
}
