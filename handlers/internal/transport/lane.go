package transport

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"hash/maphash"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A client that polls sends the same bytes again and again. net/http's parsed request depends only on the bytes of the
// head, so a socket remembers heads that it has answered, each with its parsed request. A request whose bytes are those
// of a remembered head takes the lane: Conn.Read gives its parsed request to the same handler that net/http would call,
// sends the answer by one write, and reads on. So it is authenticated, limited and answered as any other, and costs
// neither a parser nor a goroutine that watches for the client's end. Every other byte goes to net/http untouched.
//
// The lane is for answers that come at once: nothing tells its handler that the client has gone. A handler that finds
// that its answer is another one now hands the request back to net/http. The first request of a connection never takes
// the lane: until then net/http does not know that the connection is in use, and would wait for it when the server
// stops.

const (
	// maxHead is the longest head that is remembered: what net/http reads at once. maxLines is how many lines one may
	// have: a parsed header takes twenty times the bytes of a short line.
	maxHead  = 4 << 10
	maxLines = 32
	// mostHeads is how many heads all sockets of a server remember together. None takes more than 16 KB.
	mostHeads = 2048
	// maxCopied is the longest body that is sent by one write with its head, and the longest one whose length its handler
	// has not said.
	maxCopied = 16 << 10
)

var (
	// errHandedBack means that net/http gets the bytes of a request in the lane.
	errHandedBack = errors.New("the request was handed back")
	// errTooLong cuts off an answer that its handler should have handed back.
	errTooLong = errors.New("the answer is too long for the lane")
)

var laneBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }} // of answers

// lane has the heads that a socket remembers. Each has one slot by its hash, so a new head takes an old one's place.
type lane struct {
	seed  maphash.Seed
	slots []slot        // none: nothing is remembered
	all   *atomic.Int64 // the heads that the sockets of the server remember
}

type slot struct {
	// answered is the hash of the latest head that was answered. A head is remembered when it is answered again: one
	// that comes once costs no second parsing.
	answered atomic.Uint64
	head     atomic.Pointer[head]
}

// head is a remembered head. It is never changed.
type head struct {
	hash    uint64
	bytes   []byte
	request *http.Request
}

func newLane(heads int, all *atomic.Int64) *lane {
	return &lane{seed: maphash.MakeSeed(), slots: make([]slot, heads), all: all}
}

// slotOf returns the slot of a head, and its hash.
func (l *lane) slotOf(b []byte) (*slot, uint64) {
	hash := maphash.Bytes(l.seed, b)
	return &l.slots[hash%uint64(len(l.slots))], hash
}

// find returns the remembered head with these bytes, with its slot; nil for none.
func (l *lane) find(b []byte) (*slot, *head) {
	if len(l.slots) == 0 || len(b) > maxHead {
		return nil, nil
	}
	at, hash := l.slotOf(b)
	// The hash comes first: how long the comparison of bytes takes would tell of a token in another's head.
	if kept := at.head.Load(); kept != nil && kept.hash == hash && bytes.Equal(kept.bytes, b) {
		return at, kept
	}
	return nil, nil
}

// remember keeps a head that net/http has made the request of, if it is answered for the second time. The request is
// parsed from the kept bytes once more, and both must be equal: whatever has become of the bytes meanwhile, nothing is
// kept that net/http would read in another way.
func (l *lane) remember(b []byte, r *http.Request) {
	if len(l.slots) == 0 || len(b) > maxHead {
		return
	}
	at, hash := l.slotOf(b)
	if at.answered.Swap(hash) != hash || bytes.Count(b, []byte("\n")) > maxLines {
		return
	}
	if at.head.Load() == nil && l.all.Load() >= mostHeads {
		return
	}
	b = bytes.Clone(b)
	rest := bytes.NewReader(b)
	reader := bufio.NewReader(rest)
	again, err := http.ReadRequest(reader)
	if err != nil || reader.Buffered() > 0 || rest.Len() > 0 || !plain(again) || !plain(r) || !equal(again, r) {
		return
	}
	again.RemoteAddr = r.RemoteAddr
	if at.head.Swap(&head{hash: hash, bytes: b, request: again}) == nil {
		l.all.Add(1)
	}
}

// keepAlive is what many clients send, though it is so in HTTP/1.1 without it.
var keepAlive = []string{"keep-alive"}

// plain reports whether nothing but the handler decides what becomes of the connection and of the request's body.
func plain(r *http.Request) bool {
	for _, name := range []string{"Content-Length", "Expect", "Transfer-Encoding", "Upgrade"} {
		if r.Header[name] != nil {
			return false
		}
	}
	if said := r.Header["Connection"]; said != nil && !slices.Equal(said, keepAlive) {
		return false
	}
	return r.Method == http.MethodGet && r.Body == http.NoBody && r.ProtoMajor == 1 && r.ProtoMinor == 1 && !r.Close
}

func equal(a, b *http.Request) bool {
	return a.RequestURI == b.RequestURI && a.Host == b.Host && reflect.DeepEqual(a.URL, b.URL) &&
		reflect.DeepEqual(a.Header, b.Header)
}

// forget drops all heads: they have tokens in them.
func (l *lane) forget() {
	for i := range l.slots {
		if l.slots[i].head.Swap(nil) != nil {
			l.all.Add(-1)
		}
	}
}

// Remember lets the lane answer the present request when it is sent again, by a handler that answers at once.
func (c *Conn) Remember() { c.remember = true }

// HandBack reports whether the present request is in the lane, which has no answers that last or that are long and come
// piece by piece. The handler then returns without an answer. net/http reads the request again, calls the handler once
// more, and its head is forgotten.
func (c *Conn) HandBack() bool {
	c.handedBack = c.inLane.Load() == inside
	return c.handedBack
}

// The states of a connection in the lane.
const (
	outside int32 = iota // net/http has the connection
	inside               // the lane answers a request that net/http knows nothing of
	leaving              // the lane answers, and net/http has closed the connection, which it took for an idle one
)

// repeated reports whether b is a head that the socket remembers, and readies the lane for its request.
func (c *Conn) repeated(b []byte) bool {
	if !c.framing.between() || c.posted {
		return false
	}
	at, kept := c.socket.lane.find(b)
	if kept == nil || c.socket.Draining.Err() != nil {
		return false
	}
	if c.writer == nil {
		c.writer = &laneWriter{conn: c, header: http.Header{}}
	}
	c.writer.begin(at, kept)
	return true
}

// answer answers the repeated request. Errors: errHandedBack; after any other the connection is of no use, and net/http
// then sends nothing.
func (c *Conn) answer() (err error) {
	if !c.inLane.CompareAndSwap(outside, inside) {
		return io.EOF
	}
	defer func() { // also when the handler cuts the connection off by a panic
		if !c.inLane.CompareAndSwap(inside, outside) {
			err = io.EOF
			_ = c.Conn.Close()
		}
	}()
	c.framing.heads++
	c.handedBack = false
	c.socket.serveHTTP(c.writer, c.writer.request)
	c.writer.finish()
	if c.handedBack {
		c.framing.heads-- // net/http's read counts it
		return errHandedBack
	}
	if c.writer.over {
		return io.EOF
	}
	c.enter(idling)
	return nil
}

// laneWriter is the http.ResponseWriter of requests in the lane. It sends what net/http would send.
type laneWriter struct {
	conn    *Conn
	at      *slot
	from    *head
	request *http.Request // from's, with the context of the connection

	header http.Header
	status int    // 0 before WriteHeader
	body   []byte // of an answer whose length its handler has not said, at most maxCopied
	sent   bool   // all of it
	over   bool   // the connection ends with it
}

func (w *laneWriter) begin(at *slot, kept *head) {
	if w.from != kept {
		w.at, w.from, w.request = at, kept, kept.request.WithContext(w.conn.ctx)
	}
	clear(w.header)
	w.status, w.body, w.sent, w.over = 0, nil, false, false
}

func (w *laneWriter) Header() http.Header { return w.header }

func (w *laneWriter) WriteHeader(status int) { w.status = cmp.Or(w.status, status) }

// Write sends an answer whose length is known at once, so that its handler holds the memory of a long one until it is
// sent. What comes after such an answer ends the connection, as in net/http.
func (w *laneWriter) Write(b []byte) (int, error) {
	if w.sent {
		w.over = true
		return 0, http.ErrContentLength
	}
	length := w.header["Content-Length"]
	switch {
	case len(w.body) == 0 && len(length) == 1 && length[0] == strconv.Itoa(len(b)):
		w.send(b)
	case len(w.body)+len(b) > maxCopied:
		w.sent, w.over = true, true // the client must not take a part for the whole
		return 0, errTooLong
	default:
		w.body = append(w.body, b...)
	}
	return len(b), nil
}

// finish sends what is not sent yet. A head is forgotten when its handler does not let its answer be remembered again:
// its token may be bad from now on.
func (w *laneWriter) finish() {
	if !w.sent && !w.conn.handedBack {
		w.send(w.body)
	}
	if w.conn.remember {
		return
	}
	if w.at.head.CompareAndSwap(w.from, nil) {
		w.conn.socket.lane.all.Add(-1)
	}
	w.from, w.request, w.body = nil, nil, nil
}

// send sends the answer as net/http would: the handler's headers in order, then those that it has left out.
func (w *laneWriter) send(body []byte) {
	w.WriteHeader(http.StatusOK)
	w.conn.enter(writing)
	said := w.header.Get("Connection") == "close"
	w.sent, w.over = true, said || w.conn.socket.Draining.Err() != nil
	out := laneBuffers.Get().(*bytes.Buffer)
	defer laneBuffers.Put(out)
	out.Reset()
	out.WriteString("HTTP/1.1 ")
	out.Write(strconv.AppendInt(out.AvailableBuffer(), int64(w.status), 10))
	out.WriteString(" " + http.StatusText(w.status) + "\r\n")
	_ = w.header.Write(out) // a buffer takes everything
	out.WriteString("Date: ")
	out.Write(time.Now().UTC().AppendFormat(out.AvailableBuffer(), http.TimeFormat))
	if w.header["Content-Length"] == nil {
		out.WriteString("\r\nContent-Length: ")
		out.Write(strconv.AppendInt(out.AvailableBuffer(), int64(len(body)), 10))
	}
	if w.over && !said {
		out.WriteString("\r\nConnection: close")
	}
	out.WriteString("\r\n\r\n")
	whole := len(body) <= maxCopied
	if whole {
		out.Write(body)
	}
	_, err := w.conn.Conn.Write(out.Bytes())
	if err == nil && !whole {
		_, err = w.conn.Conn.Write(body)
	}
	w.over = w.over || err != nil
}
