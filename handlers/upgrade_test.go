package handlers_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/identity"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/socket"
)

const (
	rawPath     = "/v1/test/allocation/" + allocID + "/raw"
	upgradePath = "/v1/test/allocation/" + allocID + "/upgrade"
)

// echo takes the connection and sends back what comes.
func echo(_ context.Context, w http.ResponseWriter, _ *http.Request) error {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
	for err == nil {
		var line string
		if line, err = buffered.ReadString('\n'); err == nil {
			_, err = io.WriteString(conn, line)
		}
	}
	return nil
}

// onRealSocket serves a task's API on a socket of package socket, until stop is called or the test ends.
func onRealSocket(t *testing.T, config handlers.Server) (listener *socket.Listener, stop func(), ended <-chan error) {
	t.Helper()
	listener = must.Get(socket.Listen(socket.Config{Path: must.ShortDir(t) + "/api.sock", UID: -1, GID: -1}))(t)
	config.PeerOf = func(c net.Conn) (auth.Peer, error) { return c.(*socket.Conn).Peer(), nil }
	api := handlers.NewWithTestRoutes(handlers.Config{Server: config})
	owner := taskSocket
	owner.UID = uint32(os.Geteuid())
	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- api.Serve(ctx, listener, owner) }()
	return listener, stop, result
}

// TestWebsocket: a real one, over a real socket, whose place is the connection's until the end.
func TestWebsocket(t *testing.T) {
	alloc := newAlloc(t)
	alloc.upgrade = func(_ context.Context, w http.ResponseWriter, r *http.Request) error {
		upgrader := websocket.Upgrader{Error: func(http.ResponseWriter, *http.Request, int, error) {}}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return err
		}
		for err == nil {
			var kind int
			var message []byte
			if kind, message, err = conn.ReadMessage(); string(message) == "panic" {
				panic("out of cheese")
			}
			if err == nil {
				err = conn.WriteMessage(kind, message)
			}
		}
		return nil
	}
	authenticator, sign := realAuthenticator(t)
	log, audited := new(polltest.Log), new(server)
	listener, stop, ended := onRealSocket(t, handlers.Server{
		Authenticator: authenticator, Allocs: allocs{alloc}, Auditor: audited,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	path := listener.Addr().String()

	dial := func(token string) (*websocket.Conn, int) {
		t.Helper()
		dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, _, _ string) (net.Conn,
			error) {
			return socket.Dial(ctx, path)
		}}
		c, response, err := dialer.Dial("ws://local"+upgradePath, http.Header{"X-Nomad-Token": {token}})
		if response == nil {
			t.Fatal(err)
		}
		return c, response.StatusCode
	}
	says := func(c *websocket.Conn, text string) {
		t.Helper()
		must.OK(t, c.WriteMessage(websocket.TextMessage, []byte(text)))
		if _, got, err := c.ReadMessage(); err != nil || string(got) != text {
			t.Errorf("%q came back as %q, %v", text, got, err)
		}
	}
	token := sign(func(*identity.Claims) {})
	if _, status := dial("garbage"); status != http.StatusForbidden {
		t.Errorf("with garbage for a token = %d, want 403", status)
	}
	first, status := dial(token)
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", status)
	}
	says(first, "hello")
	says(first, strings.Repeat("x", 1<<20))
	if got := listener.Stats().Open; got != 1 {
		t.Errorf("%d connections are open, want the websocket", got)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	second, _ := dial(token)
	if err := second.WriteMessage(websocket.TextMessage, []byte("panic")); err != nil {
		t.Error(err)
	}
	if _, _, err := second.ReadMessage(); err == nil {
		t.Error("the connection is open after a panic")
	}
	third, _ := dial(token)
	says(third, "hello again")
	stop()
	if err := <-ended; err != nil { // it waits for the handler
		t.Errorf("Serve = %v", err)
	}
	if _, _, err := third.ReadMessage(); err == nil {
		t.Error("the connection is open after the server's end")
	}
	if got := listener.Stats().Open; got != 0 {
		t.Errorf("%d connections are open at the end", got)
	}
	if !strings.Contains(log.String(), "out of cheese") {
		t.Errorf("the panic is not in the log: %s", log)
	}
	var done int
	for _, record := range audited.audited() {
		if record.Method == http.MethodGet && record.Path == upgradePath && record.Status == http.StatusSwitchingProtocols &&
			record.Outcome == auth.Done {
			done++
		}
	}
	if done != 2 { // and the panic
		t.Errorf("audited: %+v", audited.audited())
	}
}

// TestUpgradeThatFails is answered like any other error, and the connection goes on.
func TestUpgradeThatFails(t *testing.T) {
	alloc := newAlloc(t)
	alloc.upgrade = func(context.Context, http.ResponseWriter, *http.Request) error { return errors.New("no handshake") }
	s := newServer(t, alloc)
	c := s.dial(t)
	if got := c.send(t, "GET", head("GET", upgradePath, goodToken, "")); got.Status != 500 ||
		got.Body != "internal error" {
		t.Errorf("got %d %q, want a bare 500", got.Status, got.Body)
	}
	if got := c.send(t, "GET", head("GET", checksPath, goodToken, "")); got.Status != 200 {
		t.Errorf("the next request = %d, want 200", got.Status)
	}
}

// TestUpgradeIsDecidedAgain: what a client sends over a connection for which its token is good no more reaches nobody,
// and the connection is closed within ten seconds when nothing is sent.
func TestUpgradeIsDecidedAgain(t *testing.T) {
	for name, idle := range map[string]bool{"busy": false, "idle": true} {
		t.Run(name, func(t *testing.T) {
			eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
				alloc := newAlloc(t)
				alloc.upgrade = echo
				dial, stop := bubbled(t, alloc, func(c *handlers.Config) { c.Authenticator = authenticator })
				defer stop()
				c := dial()
				defer c.Close()
				reader := bufio.NewReader(c)
				go func() { _, _ = io.WriteString(c, head("GET", upgradePath, token, "")+"one\n") }()
				if response, err := http.ReadResponse(reader, nil); err != nil ||
					response.StatusCode != http.StatusSwitchingProtocols {
					t.Fatalf("%v, %v", response, err)
				}
				if line, err := reader.ReadString('\n'); line != "one\n" {
					t.Fatalf("read %q, %v", line, err)
				}
				happens()
				if start := time.Now(); idle && !allowed {
					if line, err := reader.ReadString('\n'); !errors.Is(err, io.EOF) || time.Since(start) > 10*time.Second {
						t.Errorf("read %q, %v after %v; want the end within 10s", line, err, time.Since(start))
					}
					return
				}
				go func() { _, _ = io.WriteString(c, "two\n") }()
				if line, err := reader.ReadString('\n'); (line == "two\n") != allowed {
					t.Errorf("read %q, %v; want the line: %v", line, err, allowed)
				}
			})
		})
	}
}

// TestRawIsDecidedAgain: so is each piece of a raw answer.
func TestRawIsDecidedAgain(t *testing.T) {
	eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		alloc, next, causes := newAlloc(t), make(chan struct{}), make(chan error, 1)
		alloc.raw = func(ctx context.Context, w io.Writer) {
			_, err := w.Write([]byte("one"))
			<-next
			if err == nil {
				_, err = w.Write([]byte("two"))
			}
			causes <- err
		}
		dial, stop := bubbled(t, alloc, func(c *handlers.Config) { c.Authenticator = authenticator })
		defer stop()
		c := dial()
		defer c.Close()
		go func() { _, _ = io.WriteString(c, head("GET", rawPath, token, "")) }()
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || response.StatusCode != http.StatusOK ||
			response.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Fatalf("%v, %v", response, err)
		}
		text := make(chan string)
		go func() {
			all, _ := io.ReadAll(response.Body)
			text <- string(all)
		}()
		synctest.Wait()
		happens()
		close(next)
		want := "one"
		if allowed {
			want = "onetwo"
		}
		if got := <-text; got != want {
			t.Errorf("read %q, want %q", got, want)
		}
		if _, denied := errors.AsType[*auth.Denial](<-causes); denied == allowed {
			t.Errorf("the writer got a denial: %v", denied)
		}
	})
}

// TestUpgradedAreCountedWithStreams: both last, and both take of the socket's 64. A place is free when what took it has
// ended.
func TestUpgradedAreCountedWithStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := newAlloc(t)
		alloc.upgrade = echo
		dial, stop := bubbled(t, alloc, streaming(events.New()))
		defer stop()
		ask := func(path string) (net.Conn, *http.Response) {
			c := dial()
			go func() { _, _ = io.WriteString(c, head("GET", path, goodToken, "")) }()
			return c, must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
		}
		var open []net.Conn
		for i := range 64 {
			path, want := streamPath, http.StatusOK
			if i%2 == 0 {
				path, want = upgradePath, http.StatusSwitchingProtocols
			}
			c, got := ask(path)
			defer c.Close()
			if got.StatusCode != want {
				t.Fatalf("number %d = %d, want %d", i, got.StatusCode, want)
			}
			open = append(open, c)
		}
		for _, path := range []string{streamPath, upgradePath} {
			c, response := ask(path)
			defer c.Close()
			if got := readReply(t, response); got.Status != http.StatusTooManyRequests ||
				got.Body != "64 streams are open on this socket, and no more are possible" {
				t.Errorf("one more, %s = %d %q, want 429", path, got.Status, got.Body)
			}
		}
		for i, want := range []int{http.StatusSwitchingProtocols, http.StatusOK} {
			_ = open[i].Close() // the first is upgraded, the second streams
			synctest.Wait()
			c, got := ask([]string{upgradePath, streamPath}[i])
			defer c.Close()
			if got.StatusCode != want {
				t.Errorf("after one has ended = %d, want %d", got.StatusCode, want)
			}
		}
	})
}

// TestUpgradedClientThatDoesNotRead is cut off like any that does not take its answer, also when it goes on sending
// beside a busy neighbour.
func TestUpgradedClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc, ended := newAlloc(t), make(chan time.Time, 1)
		alloc.upgrade = func(_ context.Context, w http.ResponseWriter, _ *http.Request) error {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return err
			}
			var reading sync.WaitGroup
			reading.Go(func() { _, _ = io.Copy(io.Discard, conn) })
			defer reading.Wait()
			for err == nil {
				_, err = conn.Write(make([]byte, 1<<10))
			}
			ended <- time.Now()
			_ = conn.Close()
			return nil
		}
		s := newSockets(t, 2, func(c *handlers.Config) { c.Allocs = allocs{alloc} })
		defer s.Stop()
		c, start := s.Dials[0](), time.Now()
		defer c.Close()
		var sending sync.WaitGroup
		defer sending.Wait()
		sending.Go(func() {
			_, err := io.WriteString(c, head("GET", upgradePath, goodToken, ""))
			time.Sleep(29500 * time.Millisecond) // of synctest's clock: thirty busy seconds take a minute
			for err == nil {
				s.Ask(1, 1)
				for i := 0; i < 10 && err == nil; i++ { // more than the neighbour, so that these wait for their turn
					_, err = c.Write(make([]byte, 1<<10))
				}
			}
		})
		if took := (<-ended).Sub(start); took < 30*time.Second || took > 32*time.Second {
			t.Errorf("cut off after %v, want 30s to 31s", took)
		}
	})
}

// TestWriteAfterAnUpgrade: what a handler has left writing when it returned meets a closed connection, and decides by
// its own request.
func TestWriteAfterAnUpgrade(t *testing.T) {
	alloc := newAlloc(t)
	taken := make(chan net.Conn, 1)
	alloc.upgrade = func(_ context.Context, w http.ResponseWriter, _ *http.Request) error {
		conn, _, err := http.NewResponseController(w).Hijack()
		taken <- conn
		return err
	}
	authenticator, sign := realAuthenticator(t)
	listener, stop, ended := onRealSocket(t, handlers.Server{
		Authenticator: authenticator, Allocs: allocs{alloc}, Logger: discard(),
	})
	client := must.Get(socket.Dial(t.Context(), listener.Addr().String()))(t)
	defer client.Close()
	must.Get(io.WriteString(client, laneHead(upgradePath, sign(func(*identity.Claims) {}))))(t)
	conn := <-taken
	_, _ = io.Copy(io.Discard, client) // its end: the handler has returned
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n, err := conn.Write([]byte("late")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%d bytes written, %v", n, err)
	}
}
