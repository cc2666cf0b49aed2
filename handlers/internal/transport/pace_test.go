package transport

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/handlers/internal/transport/transporttest"
	"taskapi/internal/must"
)

// request is one of these tests'.
const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// sockets are several sockets of one server. The answer to each request is short.
type sockets struct {
	*transporttest.Sockets
	server *Server
}

// newSockets returns so many, whose pace does not rise.
func newSockets(t *testing.T, n int) *sockets {
	t.Helper()
	return newSocketsWith(t, n, func(w http.ResponseWriter, _ *http.Request, _ *Conn) { _, _ = io.WriteString(w, "ok") })
}

func newSocketsWith(t *testing.T, n int, handle Handler) *sockets {
	t.Helper()
	server := New(Config{
		PeerOf: func(net.Conn) (auth.Peer, error) { return auth.Peer{}, nil },
		Logger: slog.New(slog.DiscardHandler),
	})
	server.pacer.pace.hold = time.Now().Add(time.Hour)
	return &sockets{server: server, Sockets: transporttest.Serve(t, n, request,
		func(ctx context.Context, l net.Listener) error {
			return server.Serve(ctx, l, func(*Socket) Handler { return handle })
		})}
}

// leastOfAll returns how many requests a second several sockets begin together at the least.
func leastOfAll() float64 { return 1000 * float64(runtime.GOMAXPROCS(0)) }

// TestThePaceFollowsTheMachine: it rises with the demand while the server's timer is in time, falls when that is late,
// then stays for half a minute, and never falls below the least.
func TestThePaceFollowsTheMachine(t *testing.T) {
	window := func(n, value int) []int { return slices.Repeat([]int{value}, n) }
	rates := paceAfter(1000, slices.Concat(window(20, 2000), window(1, 1000), window(300, 1000), window(1, 1000)),
		slices.Concat(window(20, 1), window(1, 2), window(300, 0), window(1, 0)))
	for i := range 19 {
		if want := min(rates[i]*1.25, 40_000); math.Abs(rates[i+1]-want) > 1e-6 {
			t.Errorf("window %d in time: %v after %v, want %v", i+1, rates[i+1], rates[i], want)
		}
	}
	fell := 0.7 * 10_000.0 // the demand of a second
	if rates[20] != fell || rates[319] != fell {
		t.Errorf("after a window that was late %v, and %v half a minute later; want %v", rates[20], rates[319], fell)
	}
	if got := rates[321]; got <= fell {
		t.Errorf("when half a minute has gone by it is %v, want more than %v", got, fell)
	}
	if got := paceAfter(1000, window(50, 20), window(50, 20)); got[49] != 1000 {
		t.Errorf("on a machine that is always late it falls to %v, want the least", got[49])
	}
	if got := paceAfter(1000, window(50, 20), window(50, 0)); got[49] != 1000 {
		t.Errorf("when there is hardly any demand it is %v, want the least", got[49])
	}
}

// TestThePaceRisesWhileNobodyWaits: on a machine with time to spare busy sockets get more than the least.
func TestThePaceRisesWhileNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t, 2)
		s.server.pacer.pace.hold = time.Time{}
		defer s.Stop()
		s.Ask(0, 1)
		s.Ask(1, 1)
		requests := int(10 * leastOfAll())
		if _, took := s.Ask(0, requests); took > 5*time.Second {
			t.Errorf("%d requests took %v, want less than half of the time at the least pace", requests, took)
		}
	})
}

// TestNeighboursArePaced: a socket that is alone is answered as fast as can be, and beside others no faster than leaves
// the machine some rest; who asks for little is answered at once in any case.
func TestNeighboursArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t, 2)
		defer s.Stop()
		if _, took := s.Ask(0, 2000); took != 0 {
			t.Errorf("2,000 requests on a socket that is alone took %v", took)
		}
		if _, took := s.Ask(1, 1); took != 0 {
			t.Errorf("the first request of a neighbour took %v", took)
		}
		requests := int(leastOfAll()) + 64
		if _, took := s.Ask(0, requests); took < 990*time.Millisecond || took > 1100*time.Millisecond {
			t.Errorf("beside a neighbour %d requests took %v, want a second", requests, took)
		}
		time.Sleep(10 * time.Second)
		if _, took := s.Ask(0, 2000); took != 0 {
			t.Errorf("when the neighbour has been quiet for ten seconds 2,000 requests took %v", took)
		}
	})
}

// TestBusySocketsShareTheProcessor: alike, whatever the number of their connections; and what asks for less than its
// share waits for neither.
func TestBusySocketsShareTheProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t, 3)
		defer s.Stop()
		s.Ask(1, 1)
		s.Ask(2, 1)
		var busy sync.WaitGroup
		var mu sync.Mutex
		var answered [2]int
		for socket, connections := range [2]int{50, 5} {
			for range connections {
				c := s.Dials[socket]()
				time.AfterFunc(5*time.Second, func() { _ = c.Close() })
				busy.Go(func() {
					n, _ := s.AskOn(c, 1<<30)
					mu.Lock()
					answered[socket] += n
					mu.Unlock()
				})
			}
		}
		for range 50 {
			time.Sleep(90 * time.Millisecond)
			if _, took := s.Ask(2, 5); took != 0 {
				t.Errorf("5 requests of a quiet socket took %v", took)
			}
		}
		busy.Wait()
		half := 5*leastOfAll()/2 - 5*50/2
		for socket, n := range answered {
			if float64(n) < half*0.95 || float64(n) > half*1.05+2*64 {
				t.Errorf("busy socket %d was answered %d times in 5 s, want about %.0f", socket, n, half)
			}
		}
	})
}

// TestPacedRequestsEndWithTheServer: those that wait for their turn keep nobody waiting.
func TestPacedRequestsEndWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t, 2)
		s.Ask(0, 1)
		s.Ask(1, 1)
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() { s.Ask(0, 1<<30) })
		}
		time.Sleep(time.Second)
		start := time.Now()
		s.Stop()
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("the end took %v", took)
		}
		all.Wait()
	})
}

// TestPipelinedRequestsArePaced: requests that come in one piece count one by one.
func TestPipelinedRequestsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t, 2)
		defer s.Stop()
		s.Ask(0, 1)
		s.Ask(1, 1)
		c, start := s.Dials[0](), time.Now()
		defer c.Close()
		const pieces, each = 200, 10
		go func() {
			for range pieces {
				_, _ = io.WriteString(c, strings.Repeat(request, each))
			}
		}()
		reader := bufio.NewReader(c)
		for range pieces * each {
			response := must.Get(http.ReadResponse(reader, nil))(t)
			_, _ = io.Copy(io.Discard, response.Body)
		}
		want := time.Duration((pieces*each - 64) / leastOfAll() * float64(time.Second))
		if took := time.Since(start); took < want*9/10 || took > want*12/10 {
			t.Errorf("%d requests in %d pieces took %v, want %v", pieces*each, pieces, took, want)
		}
	})
}

// TestFramesArePaced: each frame of a stream is a request's worth, on however many streams.
func TestFramesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, frames = 32, 250
		begin := make(chan struct{})
		s := newSocketsWith(t, 2, func(w http.ResponseWriter, r *http.Request, c *Conn) {
			if r.Header.Get("Stream") == "" {
				_, _ = io.WriteString(w, "ok")
				return
			}
			<-begin
			for range frames {
				c.AwaitTurn(3)
			}
		})
		defer s.Stop()
		var open sync.WaitGroup
		for range streams {
			c := s.Dials[0]()
			defer c.Close()
			open.Go(func() {
				_, _ = io.WriteString(c, strings.Replace(request, "Host", "Stream: yes\r\nHost", 1))
				if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		s.Ask(1, 1)
		start := time.Now()
		close(begin)
		open.Wait()
		want := time.Duration((streams*frames - 64) / leastOfAll() * float64(time.Second))
		if took := time.Since(start); took < want*9/10 || took > want*13/10 {
			t.Errorf("%d frames on %d streams took %v, want %v", streams*frames, streams, took, want)
		}
	})
}

// paceAfter returns the paces of busy sockets after each window in which so many requests came and so many ticks came
// late, starting at the least.
func paceAfter(least float64, demand, late []int) []float64 {
	var rates []float64
	now := time.Unix(0, 0)
	p := pace{least: least, rate: least, since: now}
	for i := range demand {
		for tick := range int(paceWindow / paceTick) {
			now = now.Add(paceTick)
			p.begun += demand[i] * int(paceTick) / int(paceWindow)
			lateness := time.Duration(0)
			if tick < late[i] {
				lateness = 2 * paceLate
			}
			p = p.tick(now, lateness)
		}
		rates = append(rates, p.rate)
	}
	return rates
}
