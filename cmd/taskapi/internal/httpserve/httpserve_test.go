package httpserve

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:9100": "127.0.0.1:9100", "[::1]:0": "[::1]:0", "localhost:80": "127.0.0.1:80",
		"LocalHost:80": "127.0.0.1:80",
		"0.0.0.0:9100": "0.0.0.0:9100", "unix:///run/x.sock": "unix:///run/x.sock",
	} {
		if got, err := ParseAddress(text); err != nil || got.String() != want {
			t.Errorf("%q = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":9100", "9100", "localhost", "host:1", "127.0.0.1:-1", "127.0.0.1:65536", "::1:80",
		"unix://x", "unix:/x", "/x"} {
		if got, err := ParseAddress(text); err == nil {
			t.Errorf("%q = %v", text, got)
		}
	}
	for text, want := range map[string]bool{"127.0.0.1:1": false, "127.0.0.1:0": false, "127.0.0.1:65535": true,
		"unix:///x": false} {
		if a, _ := ParseAddress(text); a.AnyUserCanTake() != want {
			t.Errorf("%s: any user can take it: %v", text, !want)
		}
	}
}

// serve serves until the test ends, for most connections at a time. A request for /wait says that it has come, and is
// answered when it may go.
func serve(t *testing.T, address string, most int) (l *Listener, come, may chan struct{}) {
	t.Helper()
	a, err := ParseAddress(address)
	must.OK(t, err)
	l, err = Listen(a, most)
	must.OK(t, err)
	come, may = make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			come <- struct{}{}
			select {
			case <-may:
			case <-r.Context().Done():
			}
		}
		w.WriteHeader(http.StatusTeapot)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := l.Serve(ctx, &http.Server{Handler: handler}, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); serving.Wait() })
	return l, come, may
}

// client is a connection of a test.
type client struct {
	net.Conn
	*testing.T
}

func dial(t *testing.T, l *Listener) client {
	t.Helper()
	conn := must.Get(net.Dial(l.Listener.Addr().Network(), l.Listener.Addr().String()))(t)
	t.Cleanup(func() { conn.Close() })
	return client{conn, t}
}

func (c client) send(method, path string) {
	c.Helper()
	if _, err := io.WriteString(c, method+" "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		c.Error(err)
	}
}

// answered reports whether the connection brings an answer of the handler's, not an end.
func (c client) answered() bool {
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	return err == nil && response.StatusCode == http.StatusTeapot
}

// TestIdleConnectionsGiveWay: who opens all the connections there may be and sends nothing keeps nobody out, over TCP
// and a Unix socket. A request that is being answered goes on.
func TestIdleConnectionsGiveWay(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "unix://" + filepath.Join(t.TempDir(), "s")} {
		const most = 3
		l, come, may := serve(t, address, most)
		busy := dial(t, l)
		busy.send("GET", "/wait")
		<-come
		for range 3 * most {
			dial(t, l) // and says nothing
		}
		for range 3 * most {
			must.Get(io.WriteString(dial(t, l), "GET / HTTP"))(t)
		}
		for range 2 * most {
			c := dial(t, l)
			c.send("GET", "/")
			if !c.answered() { // and stays open, idle
				t.Errorf("%s: a request beside idle connections is not answered", address)
			}
		}
		close(may)
		if !busy.answered() {
			t.Errorf("%s: a request that was being answered lost its connection to idle ones", address)
		}
	}
}

// TestTheOldestRequestGivesWay where no connection is idle: readers that never end do not keep others out either.
func TestTheOldestRequestGivesWay(t *testing.T) {
	l, come, may := serve(t, "127.0.0.1:0", 2)
	var all []client
	for range 3 {
		c := dial(t, l)
		c.send("GET", "/wait")
		<-come
		all = append(all, c)
	}
	if all[0].answered() {
		t.Error("the oldest is answered")
	}
	close(may) // one word for each may go to the handler of the oldest, which learns of its end a moment later
	for _, c := range all[1:] {
		if !c.answered() {
			t.Error("a later one is cut off")
		}
	}
}

// TestSilentConnectionsDelayNoEnd: the end waits for requests, and hardly for connections on which none has come.
func TestSilentConnectionsDelayNoEnd(t *testing.T) {
	l := must.Get(Listen(must.Get(ParseAddress("127.0.0.1:0"))(t), 3))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- l.Serve(ctx, &http.Server{Handler: http.NotFoundHandler()}, slog.New(slog.DiscardHandler))
	}()
	dial(t, l)
	must.Get(io.WriteString(dial(t, l), "GET / HTTP"))(t)
	last := dial(t, l)
	last.send("GET", "/")
	must.Get(http.ReadResponse(bufio.NewReader(last), nil))(t).Body.Close() // the others were accepted before
	began := time.Now()
	cancel()
	must.OK(t, <-ended)
	if took := time.Since(began); took >= endTime {
		t.Errorf("the end took %v, want %v", took, silentTime)
	}
}

// TestEveryAnswerIsTheHandlers: net/http answers nothing by itself.
func TestEveryAnswerIsTheHandlers(t *testing.T) {
	l, _, _ := serve(t, "127.0.0.1:0", 2)
	c := dial(t, l)
	c.send("OPTIONS", "*")
	if !c.answered() {
		t.Error("OPTIONS * is not for the handler")
	}
}

func TestAddressInUse(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "unix://" + filepath.Join(t.TempDir(), "s")} {
		l, _, _ := serve(t, address, 1)
		a, err := ParseAddress(address)
		if a.Socket == "" {
			a, err = ParseAddress(l.Addr().String())
		}
		must.OK(t, err)
		if second, err := Listen(a, 1); err == nil {
			t.Errorf("%s is taken twice: %v", a, second.URL())
		}
	}
}

func TestNamesThisMachine(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1:9100": true, "localhost:9100": true, "LOCALHOST": true, "[::1]:9100": true, "[::1]": true,
		"10.1.2.3": true,
		"":         false, "evil.example:9100": false, "localhost.evil.example": false,
	} {
		same.As(t, want, NamesThisMachine(host), host, " names this machine")
	}
}
