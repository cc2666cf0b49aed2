package transport

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/handlers/internal/transport/transporttest"
)

// laneServer is one socket in memory, and what its handler has seen.
type laneServer struct {
	*transporttest.Sockets
	server *Server
	taken  int // requests that took the lane
}

// serveLane serves a socket that remembers so many heads, as nil answers.
func serveLane(t *testing.T, heads int, handle Handler) *laneServer {
	t.Helper()
	server := New(Config{
		PeerOf: func(net.Conn) (auth.Peer, error) { return auth.Peer{}, nil },
		Logger: slog.New(slog.DiscardHandler), Heads: heads,
	})
	s := &laneServer{server: server}
	s.Sockets = transporttest.Serve(t, 1, request, func(ctx context.Context, l net.Listener) error {
		return server.Serve(ctx, l, func(*Socket) Handler {
			return func(w http.ResponseWriter, r *http.Request, c *Conn) {
				if _, ok := w.(*laneWriter); ok {
					s.taken++
				}
				handle(w, r, c)
			}
		})
	})
	return s
}

// say sends the texts one after the other, each when everything that came before is answered, and returns all that
// came back, and whether the server has closed the connection by then.
func (s *laneServer) say(texts ...string) (answers string, closed bool) {
	conn := s.Dials[0]()
	var got bytes.Buffer
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(&got, conn)
		close(ended)
	}()
	for _, text := range texts {
		go func() { _, _ = io.WriteString(conn, text) }()
		synctest.Wait()
	}
	select {
	case <-ended:
		closed = true
	default:
	}
	_ = conn.Close()
	<-ended
	return got.String(), closed
}

// reply answers in each way that a handler of the API has, by the path.
func reply(w http.ResponseWriter, r *http.Request, c *Conn) {
	body := []byte(r.Method + " " + r.URL.String() + " " + r.Host + fmt.Sprint(r.Header, r.RemoteAddr, r.Close))
	h := w.Header()
	h["X-Seen"] = []string{"a\r\nb"} // net/http sends no line break in a value
	if !strings.HasPrefix(r.URL.Path, "/refused") {
		c.Remember()
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/refused"):
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write(body)
	case strings.HasPrefix(r.URL.Path, "/empty"):
		h["Content-Length"] = []string{"0"}
		_, _ = w.Write(nil)
	case strings.HasPrefix(r.URL.Path, "/silent"):
	case strings.HasPrefix(r.URL.Path, "/long"):
		body = bytes.Repeat(body, 20<<10/len(body))
		fallthrough
	default:
		h["Content-Type"], h["Content-Length"] = []string{"application/json"}, []string{fmt.Sprint(len(body))}
		_, _ = w.Write(body)
	}
}

const get = "GET /v1/x HTTP/1.1\r\nHost: task\r\nX-Nomad-Token: a.b.c\r\n\r\n"

// heads are requests that a client may send, alone or after each other.
var heads = []string{
	get,
	request,
	"GET /refused HTTP/1.1\r\nHost: task\r\n\r\n",
	"GET /empty HTTP/1.1\r\nHost: task\r\n\r\n",
	"GET /silent HTTP/1.1\r\nHost: task\r\n\r\n",
	"GET /long HTTP/1.1\r\nHost: task\r\n\r\n",
	"GET /v1/x?a=b&a=c HTTP/1.1\r\nHost: task\r\nAccept: a\r\nAccept: b\r\n\r\n",
	"GET /v1/%2e%2e/x?%zz HTTP/1.1\r\nHost: task\r\n\r\n",
	"GET http://other/v1/x HTTP/1.1\r\nHost: task\r\n\r\n",
	"GET /v1/x HTTP/1.1\nHost: task\n\n",
	"HEAD /v1/x HTTP/1.1\r\nHost: task\r\n\r\n",
	"GET /v1/x HTTP/1.0\r\nHost: task\r\n\r\n",
	"GET /v1/x HTTP/1.0\r\nHost: task\r\nConnection: keep-alive\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nConnection: close\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nConnection: keep-alive\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nContent-Length: 0\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nContent-Length: 3\r\n\r\nabc",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"POST /v1/x HTTP/1.1\r\nHost: task\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
	"POST /v1/x HTTP/1.1\r\nHost: task\r\nContent-Length: 0\r\n\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nExpect: 100-continue\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nTrailer: A\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nHost: other\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nA: " + strings.Repeat("a", 4<<10) + "\r\n\r\n",
	get + "\r\n", "\r\n", "\r\n" +
		get, get + get, get[:20], get[20:], "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\nConnection: keep-alive, close\r\n\r\n",
	"GET /v1/x HTTP/1.1\r\nHost: task\r\n" + strings.Repeat("A: a\r\n", maxLines) + "\r\n",
}

// FuzzLane: whatever comes, in whatever pieces, a socket that remembers heads sends what one without them sends, byte
// by byte, and closes the connection when that does. Zero bytes separate what is sent.
func FuzzLane(f *testing.F) {
	for i, head := range heads {
		f.Add(strings.Join([]string{head, head, head, get, head}, "\x00"))
		f.Add(strings.Join([]string{get, get, heads[19], head, "\r\n" + get, head}, "\x00"))
		f.Add(strings.Join([]string{get, get, get, head, heads[(i+1)%len(heads)], get}, "\x00"))
	}
	f.Fuzz(func(t *testing.T, sent string) {
		texts := strings.Split(sent, "\x00")
		if len(texts) > 20 {
			t.Skip("longer than what is to be found")
		}
		synctest.Test(t, func(t *testing.T) {
			type outcome struct {
				answers string
				closed  bool
			}
			var got [2]outcome
			for i, remembered := range []int{0, 2} {
				s := serveLane(t, remembered, reply)
				got[i].answers, got[i].closed = s.say(texts...)
				s.Stop()
				if remembered == 0 && s.taken != 0 {
					t.Errorf("%d requests took the lane of a socket that remembers nothing", s.taken)
				}
			}
			if got[0] != got[1] {
				t.Errorf("%q is answered by\n%+v\nwithout the lane, and by\n%+v\nwith it", texts, got[0], got[1])
			}
		})
	})
}

// TestLane: a head is answered by the lane from its third time on, on any connection; but not a head that says what
// becomes of the connection, that has or may have a body, or that did not come alone and whole.
func TestLane(t *testing.T) {
	five := func(head string) []string { return []string{head, head, head, head, head} }
	for name, test := range map[string]struct {
		texts []string
		want  int
	}{
		"the same":                 {five(get), 3},
		"with a query":             {five(heads[6]), 3},
		"a long answer":            {five(heads[5]), 3},
		"another":                  {[]string{get, get, heads[3], heads[4], request}, 0},
		"refused":                  {five(heads[2]), 0},
		"HEAD":                     {five(heads[10]), 0},
		"HTTP/1.0":                 {five(heads[12]), 0},
		"with its end":             {five(heads[13]), 0},
		"without its end":          {five(heads[14]), 3},
		"with two words on it":     {five(heads[34]), 0},
		"with many lines":          {five(heads[35]), 0},
		"with a length":            {five(heads[15]), 0},
		"with a body":              {five(heads[16]), 0},
		"two at once":              {five(get + get), 0},
		"in two pieces":            {[]string{get, get, get[:20], get[20:], get}, 1},
		"after an empty line":      {[]string{get, get, "\r\n"}, 0},
		"after a head and a line":  {[]string{get, get, request + "\r\n", get}, 0},
		"after a POST":             {[]string{get, get, heads[19], get, get}, 1},
		"too long":                 {five(heads[25]), 0},
		"in two pieces, the third": {[]string{get, get, get, get[:1], get[1:]}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serveLane(t, 64, reply)
				defer s.Stop()
				s.say(test.texts...)
				if s.taken != test.want {
					t.Errorf("%d of %q took the lane, want %d", s.taken, test.texts, test.want)
				}
			})
		})
	}
}

// TestForgottenHead: a head is forgotten with an answer that its handler does not let be remembered.
func TestForgottenHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests int
		s := serveLane(t, 1, func(w http.ResponseWriter, r *http.Request, c *Conn) {
			if requests++; requests != 3 {
				c.Remember()
			}
		})
		defer s.Stop()
		if s.say(get, get, get, get, get); s.taken != 2 {
			t.Errorf("%d requests took the lane, want the third and the fifth", s.taken)
		}
	})
}

// TestAnswerAfterAnAnswer: a handler that writes on after its whole answer, as after a panic in what is called then,
// ends the connection, and sends nothing that the client takes for the answer to its next request.
func TestAnswerAfterAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got [2]string
		for i, heads := range []int{0, 1} {
			var requests int
			s := serveLane(t, heads, func(w http.ResponseWriter, r *http.Request, c *Conn) {
				reply(w, r, c)
				if requests++; requests == 3 {
					w.Header()["Content-Length"] = []string{"5"}
					w.WriteHeader(http.StatusInternalServerError)
					_, _ = io.WriteString(w, "again")
				}
			})
			answers, closed := s.say(get, get, get, get)
			s.Stop()
			got[i] = fmt.Sprint(closed, answers)
			if s.taken != heads {
				t.Errorf("%d requests took the lane, want %d", s.taken, heads)
			}
		}
		if got[0] != got[1] || strings.Count(got[1], "HTTP/1.1 200 OK") != 3 || strings.Contains(got[1], "again") {
			t.Errorf("without the lane\n%s\nand with it\n%s", got[0], got[1])
		}
	})
}

// TestHandedBack: an answer that comes piece by piece, to a head that is remembered, is the one without the lane. So is
// what follows. Without handing it back, nothing of a long one is sent.
func TestHandedBack(t *testing.T) {
	for name, test := range map[string]struct {
		handsBack bool
		bytes     int
		same      bool
	}{"long": {true, 4 * maxCopied, true}, "short": {true, 10, true}, "kept": {false, 4 * maxCopied, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got [2]string
				for i, heads := range []int{0, 1} {
					var answered int
					s := serveLane(t, heads, func(w http.ResponseWriter, r *http.Request, c *Conn) {
						if answered == 2 && test.handsBack && c.HandBack() {
							return
						}
						if answered++; answered != 3 {
							reply(w, r, c)
							return
						}
						for range 2 {
							_, _ = io.WriteString(w, strings.Repeat("a", test.bytes))
						}
					})
					answers, closed := s.say(get, get, get, request, get, get)
					s.Stop()
					got[i] = fmt.Sprint(closed, answers)
					if heads == 1 && s.taken == 0 {
						t.Error("no request took the lane")
					}
				}
				if (got[0] == got[1]) != test.same || !test.same && strings.Contains(got[1], "aa") {
					t.Errorf("without the lane\n%.2000s\nand with it\n%.2000s", got[0], got[1])
				}
			})
		})
	}
}

// TestMostHeads: all sockets together remember no more than mostHeads, and nothing after their end.
func TestMostHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveLane(t, 8*mostHeads, reply)
		for n := range 2 * mostHeads {
			other := fmt.Sprintf("GET /v1/%d HTTP/1.1\r\nHost: task\r\n\r\n", n)
			s.say(other, other)
		}
		if got := s.server.heads.Load(); got != mostHeads {
			t.Errorf("%d heads are remembered, want %d", got, mostHeads)
		}
		s.Stop()
		if got := s.server.heads.Load(); got != 0 {
			t.Errorf("%d heads are remembered when no socket is served any more", got)
		}
	})
}

// TestHeadsAreForgotten: once no connection is left, and for a server that is told to remember none.
func TestHeadsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveLane(t, 64, reply)
		defer s.Stop()
		s.say(get, get)
		if s.say(get); s.taken != 0 {
			t.Errorf("the first request of a connection took the lane") // net/http has not seen the connection idle
		}
		if s.say(request, get); s.taken != 1 {
			t.Errorf("%d requests of another connection took the lane, want 1", s.taken)
		}
		time.Sleep(2 * sweepEvery)
		if s.say(request, get); s.taken != 1 {
			t.Errorf("a head was remembered when its last connection had been gone for two seconds")
		}
	})
}

// TestLaneWhenTheServerStops: net/http takes a connection in the lane for an idle one. The answer is sent all the same
// if the handler is done in time, and says that it is the last; a handler that takes longer is cut off.
func TestLaneWhenTheServerStops(t *testing.T) {
	for name, test := range map[string]struct {
		takes  time.Duration
		answer bool
	}{"soon": {time.Second, true}, "late": {time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var times int
				s := serveLane(t, 64, func(w http.ResponseWriter, r *http.Request, c *Conn) {
					if times++; times == 3 {
						select {
						case <-time.After(test.takes):
						case <-r.Context().Done():
							panic(http.ErrAbortHandler)
						}
					}
					reply(w, r, c)
				})
				begin, stopped := time.Now(), make(chan time.Duration)
				conn := s.Dials[0]()
				answers := make(chan string)
				go func() {
					all, _ := io.ReadAll(conn)
					answers <- string(all)
				}()
				for range 3 {
					_, _ = io.WriteString(conn, get)
					synctest.Wait()
				}
				go func() {
					s.Stop()
					stopped <- time.Since(begin)
				}()
				took, all := <-stopped, <-answers
				if s.taken != 1 {
					t.Fatalf("%d requests took the lane, want 1", s.taken)
				}
				if want := min(test.takes, DrainTimeout); took != want {
					t.Errorf("the server stopped after %v, want %v", took, want)
				}
				if got := strings.Count(all, "HTTP/1.1 200 OK"); got != 3 && test.answer || got != 2 && !test.answer {
					t.Errorf("%d answers: %q", got, all)
				}
				if test.answer != strings.Contains(all, "\r\nConnection: close\r\n\r\n") {
					t.Errorf("the last answer is %q", all)
				}
			})
		})
	}
}

// TestLaneEnds: a client that does not take its answer is cut off, as outside of the lane, and one that its handler
// cuts off is.
func TestLaneEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveLane(t, 64, func(w http.ResponseWriter, r *http.Request, c *Conn) {
			switch _, ok := w.(*laneWriter); {
			case ok && r.URL.Path == "/empty":
				panic(http.ErrAbortHandler)
			case ok && r.URL.Path == "/silent":
				w.Header().Set("Connection", "close")
			}
			reply(w, r, c)
		})
		defer s.Stop()
		if all, closed := s.say(heads[3], heads[3], heads[3]); !closed || s.taken != 1 || strings.Count(all, " 200 ") != 2 {
			t.Errorf("a handler cut off a client in the lane: closed is %v, %d took the lane: %q", closed, s.taken, all)
		}
		all, closed := s.say(heads[4], heads[4], heads[4])
		if !closed || s.taken != 2 || strings.Count(all, "\r\nConnection: close\r\n") != 1 {
			t.Errorf("a handler ended the connection in the lane: closed is %v, %d took the lane: %q", closed, s.taken, all)
		}
		conn := s.Dials[0]()
		defer conn.Close()
		for range 2 {
			s.AskOn(conn, 1)
			synctest.Wait()
		}
		_, _ = io.WriteString(conn, request)
		time.Sleep(WriteTimeout + 2*sweepEvery)
		if rest, err := io.ReadAll(conn); len(rest) > 0 || err != nil || s.taken != 3 {
			t.Errorf("a client that did not read for long got %q, %v; %d took the lane", rest, err, s.taken)
		}
	})
}
