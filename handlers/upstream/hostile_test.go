package upstream_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"taskapi/internal/must"
)

// says has the agent answer with these bytes, and close the connection.
func (d *double) says(text string) {
	d.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, text)
			conn.Close()
		}
		return true
	})
}

// kinds returns requests whose answers go three ways: from the cache, passed on, and passed on once. The cache knows
// nothing of the first.
func kinds(n int) []string {
	return []string{fmt.Sprint("GET /v1/job/", n), "GET /v1/agent/self", "PUT /v1/jobs"}
}

// TestBrokenAnswers: an answer that ends at any byte is never taken for a whole one, and a change is not sent again.
func TestBrokenAnswers(t *testing.T) {
	f := newFixture(t)
	token := f.token("web", allocID)
	const body = `["whole"]`
	for i, head := range []string{"Content-Length: 9\r\n\r\n" + body, "Transfer-Encoding: chunked\r\n\r\n" +
		"4\r\n" + body[:4] + "\r\n5\r\n" + body[4:] + "\r\n0\r\n\r\n"} {
		text := "HTTP/1.1 200 OK\r\nX-Nomad-Index: 7\r\nConnection: close\r\n" + head
		for n := range len(text) + 1 {
			f.agent.says(text[:n])
			for _, kind := range kinds(1000*i + n) {
				method, path, _ := strings.Cut(kind, " ")
				before := f.agent.count(kind)
				a := f.do("web", method, path, token, "")
				whole := a.err == nil && a.status == 200
				lost := a.err != nil || a.status == map[string]int{"GET": 503, "PUT": 502}[method]
				if whole && a.body != body || whole == lost || n == len(text) && lost {
					t.Errorf("%s, answered with %q: %+v", kind, text[:n], a)
				}
				if got := f.agent.count(kind) - before; method == http.MethodPut && got != 1 {
					t.Errorf("%s, answered with %q: sent %d times", kind, text[:n], got)
				}
			}
		}
	}
}

// TestHostileAgent: no answer of an agent breaks the gateway, or costs it without bounds.
func TestHostileAgent(t *testing.T) {
	f := newFixture(t)
	token := f.token("web", allocID)
	ok := "HTTP/1.1 200 OK\r\nX-Nomad-Index: 7\r\nConnection: close\r\n"
	const away, whole = "503 503 502", "200 200 200"
	n := 0
	for what, c := range map[string]struct{ text, want string }{
		"endless headers":       {ok + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 200), away},
		"an endless line":       {ok + strings.Repeat("a", 1<<20), away},
		"another protocol":      {"SSH-2.0-garbage\r\n\r\n", away},
		"an early TLS alert":    {"\x15\x03\x01\x00\x02\x02\x50", away},
		"a status of 99":        {"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n", away},
		"a status of 777":       {"HTTP/1.1 777 Odd\r\nContent-Length: 0\r\n\r\n", away},
		"an upgrade":            {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: a\r\n\r\n", away},
		"two lengths":           {ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", away},
		"a negative length":     {ok + "Content-Length: -1\r\n\r\nab", away},
		"a length that is huge": {ok + "Content-Length: 99999999999999999999\r\n\r\nab", away},
		"chunks of minus one":   {ok + "Transfer-Encoding: chunked\r\n\r\n-1\r\nab", "503 broken broken"},
		"another encoding":      {ok + "Transfer-Encoding: gzip\r\n\r\nab", away},
		"too little":            {ok + "Content-Length: 3\r\n\r\nab", "503 broken broken"},
		"too much":              {ok + "Content-Length: 2\r\n\r\nab" + ok + "Content-Length: 4\r\n\r\nevil", whole},
		"no length":             {ok + "\r\nab", whole},
		"HTTP/1.0":              {"HTTP/1.0 200 OK\r\nX-Nomad-Index: 7\r\n\r\nab", whole},
		"no JSON":               {ok + "Content-Length: 2\r\n\r\n{[", whole},
		"no index":              {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab", whole},
		"a huge index":          {strings.Replace(ok, "7", "99999999999999999999", 1) + "Content-Length: 2\r\n\r\nab", whole},
		"early hints": {strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 1000) + ok +
			"Content-Length: 2\r\n\r\nab", whole},
		"a redirect": {strings.Replace(ok, "200 OK", "302 Found", 1) + "Location: /\r\nContent-Length: 0\r\n\r\n",
			"302 302 302"},
	} {
		f.agent.says(c.text)
		n++
		got := make([]string, 3)
		for i, kind := range kinds(n) {
			method, path, _ := strings.Cut(kind, " ")
			a := f.do("web", method, path, token, "")
			got[i] = fmt.Sprint(a.status)
			if a.err != nil {
				got[i] = "broken"
			}
			if strings.Contains(a.body, "evil") {
				t.Errorf("%s: %+v", what, a)
			}
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	f.agent.says("HTTP/1.1 103 Early Hints\r\n\r\n" + ok + "Content-Length: 2\r\n\r\nab")
	if got := f.raw("web", "GET /v1/agent/self HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: "+token+"\r\n\r\n"); got != 200 {
		t.Errorf("before the answer comes a %d", got)
	}
}

// TestAClosedConnection: an agent that closes a connection as it gets a request on it gets a read again, and a change
// not.
func TestAClosedConnection(t *testing.T) {
	for request, want := range map[string]int{
		"GET /v1/agent/self": 200, "HEAD /v1/agent/self": 200, "GET /v1/client/gc": 502, "PUT /v1/jobs": 502,
	} {
		t.Run(request, func(t *testing.T) {
			f := newFixture(t)
			var n atomic.Int64
			f.agent.answers(func(w http.ResponseWriter, _ *http.Request) bool {
				if n.Add(1) == 2 {
					if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
						conn.Close()
					}
				}
				return true
			})
			token := f.token("web", allocID)
			method, path, _ := strings.Cut(request, " ")
			for i, want := range []int{200, want} {
				if a := f.do("web", method, path, token, ""); a.status != want {
					t.Errorf("request %d: %+v, want status %d", i+1, a, want)
				}
			}
			if got := n.Load(); (got == 3) != (want == 200) {
				t.Errorf("the agent got %d requests", got)
			}
		})
	}
}

// TestEncodedAnswer: an answer that comes compressed, though nobody asked for it, is passed on as what it is.
func TestEncodedAnswer(t *testing.T) {
	f := newFixture(t)
	f.agent.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("X-Nomad-Index", "7")
		w.Header().Set("Content-Encoding", "br")
		_, _ = io.WriteString(w, "packed")
		return true
	})
	for range 2 {
		a := f.do("web", "GET", "/v1/jobs", f.token("web", allocID), "")
		if a.status != 200 || a.body != "packed" || a.header.Get("Content-Encoding") != "br" {
			t.Errorf("%+v", a)
		}
	}
}

// TestExpiry: a read that waits is refused, and a stream ends, when its token has expired, though nothing changes.
func TestExpiry(t *testing.T) {
	f := newFixture(t)
	f.agent.set("/v1/jobs", "[]")
	f.agent.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/event/stream" {
			return false
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
	for seconds := int64(3); ; seconds *= 2 {
		token := f.tokenFor("web", allocID, seconds)
		first := f.do("web", "GET", "/v1/jobs", token, "")
		waits, streams := make(chan answer, 1), make(chan answer)
		go func() { streams <- f.do("web", "GET", "/v1/event/stream", token, "") }()
		go func() {
			waits <- f.do("web", "GET", "/v1/jobs?wait=1000h&index="+first.header.Get("X-Nomad-Index"), token, "")
		}()
		stream := <-streams
		f.until("the read ends", func() bool { return len(waits) == 1 })
		read := <-waits
		if stream.status == 403 && seconds < 60 { // a busy machine has asked too late
			continue
		}
		if stream.status != 200 || stream.err == nil {
			t.Errorf("the stream: %+v", stream)
		}
		if read.status != 403 {
			t.Errorf("the read: %+v", read)
		}
		return
	}
}

// TestExpiryOfAChange: a change whose token expires while the agent makes it is not answered with a refusal.
func TestExpiryOfAChange(t *testing.T) {
	f := newFixture(t)
	arrived := make(chan struct{}, 1)
	f.agent.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		return true
	})
	for seconds := int64(2); ; seconds *= 2 {
		got := f.do("web", "PUT", "/v1/job/web", f.tokenFor("web", allocID, seconds), "")
		if len(arrived) == 0 && seconds < 60 { // a busy machine has asked too late
			continue
		}
		if got.status != http.StatusBadGateway {
			t.Errorf("the change: %+v", got)
		}
		return
	}
}

// TestSmuggling: what could be two requests to the agent is refused, or one there.
func TestSmuggling(t *testing.T) {
	f := newFixture(t)
	token := f.token("web", allocID)
	head := " HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: " + token + "\r\n"
	const chunked, end = "Transfer-Encoding: chunked\r\n", "\r\n0\r\n\r\n"
	const evil = "DELETE /v1/job/evil HTTP/1.1\r\nHost: x\r\n\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n", len(evil))
	// The gateway closes the connection after the last request. A client that ends its part of it leaves its requests.
	const last = "GET /ui/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	// CASE is another word for each, since the agent may have a request later than its client the answer.
	cases := map[string]string{
		"two lengths":                "PUT /v1/job/CASE" + head + "Content-Length: 0\r\n" + length + "\r\n" + evil,
		"a length in a list":         "PUT /v1/job/CASE" + head + "Content-Length: 0, 43\r\n\r\n" + evil,
		"a signed length":            "PUT /v1/job/CASE" + head + "Content-Length: +0\r\n\r\n" + evil,
		"length and chunks":          "PUT /v1/job/CASE" + head + length + chunked + end + evil,
		"chunks, spelled oddly":      "PUT /v1/job/CASE" + head + length + "Transfer-Encoding: \x0bchunked\r\n" + end + evil,
		"chunks twice":               "PUT /v1/job/CASE" + head + "Transfer-Encoding: chunked, chunked\r\n" + end + evil,
		"a space before the colon":   "PUT /v1/job/CASE" + head + "Content-Length : 0\r\n\r\n" + evil,
		"a folded line":              "PUT /v1/job/CASE" + head + "X-A: a\r\n " + length + "\r\n" + evil,
		"bare line feeds":            "PUT /v1/job/CASE" + strings.ReplaceAll(head, "\r", "") + length + "\n" + evil,
		"a body of a GET":            "GET /v1/agent/CASE" + head + length + "\r\n" + evil,
		"a body of a cached GET":     "GET /v1/jobs" + head + length + "\r\n" + evil,
		"a line end in the path":     "GET /v1/agent/CASE%0d%0aX-A:%20b" + head + "\r\n",
		"a line end in the query":    "GET /v1/agent/CASE?a=%0d%0aX-A:%20b" + head + "\r\n",
		"an expectation":             "PUT /v1/job/CASE" + head + length + "Expect: 100-continue\r\n\r\n" + evil,
		"trailers":                   "PUT /v1/job/CASE" + head + "Trailer: X-A\r\n" + chunked + "\r\n0\r\nX-A: b\r\n\r\n",
		"an upgrade that is no such": "GET /v1/agent/CASE" + head + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + evil,
	}
	sent := map[string]string{} // by the word
	for what, text := range cases {
		word := fmt.Sprintf("case%02d", len(sent))
		sent[word] = what
		conn := must.Get(net.Dial("unix", f.sockets["web"]))(t)
		_, _ = io.WriteString(conn, strings.Replace(text, "CASE", word, 1)+last)
		_, _ = io.ReadAll(conn)
		conn.Close()
	}
	f.agent.mu.Lock()
	defer f.agent.mu.Unlock()
	got := map[string]int{} // requests of a case
	for request, times := range f.agent.requests {
		_, after, ofCase := strings.Cut(request, "/case")
		switch {
		case ofCase:
			got[sent["case"+after[:2]]] += times
		case request != "GET /v1/jobs" && request != "GET /v1/agent/self" && !strings.Contains(request, "jwks"):
			t.Errorf("the agent got %s", request)
		}
	}
	for what, n := range got {
		if n > 1 {
			t.Errorf("%s: the agent got %d requests", what, n)
		}
	}
}
