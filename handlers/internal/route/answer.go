package route

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/hashicorp/nomad/api"
)

// Answer is a handler's result. Its form depends on the route's kind: a body for JSON, and one of the functions for the
// other kinds. A body that another process has sent may be an error, and so is an answer of any kind.
type Answer struct {
	Body   *Body
	Index  uint64 // of a read that a client can block on, or of a write; 0: no index headers
	read   bool   // nothing was changed; the server sets it
	Shared bool   // the index is not the allocation's, but for example the index of shared variables
	Status int    // of an answer that is not 200; 204 has no body

	NextToken string // of a list that goes on; empty for none

	// Stream writes frames until ctx ends: when the client has gone, or as in whileAuthorized.
	Stream      func(ctx context.Context, out *StreamWriter)
	ContentType []string // of a stream
	NoSniff     bool     // of a stream: a browser must not take what a task has written for anything else
	Release     func()   // releases the stream's resources, whether the stream has run or not; nil for none

	// Upgrade takes the connection by http.Hijacker and serves it until ctx ends. If it has not taken the connection,
	// its error is the answer.
	Upgrade func(ctx context.Context, w http.ResponseWriter) error
	// Farewell is called before the connection is closed because ctx has ended, with its cause; nil for nothing.
	Farewell func(cause error)
}

// Body is an encoded body that can be written any number of times. It is never changed once made.
type Body struct {
	bytes       []byte
	contentType []string // header values, made once: a write allocates none
	length      []string
}

// The content types of answers, as header values.
var (
	JSONType   = []string{"application/json"}
	BinaryType = []string{"application/octet-stream"}
	PlainType  = []string{"text/plain; charset=utf-8"}
)

// noSniffHeader is for content that others have made.
var noSniffHeader = []string{"nosniff"}

// The values of index headers that never change: this process is its own leader.
var (
	knownLeader = []string{"true"}
	lastContact = []string{"0"}
)

// NewBody returns a body of a content type, as header values.
func NewBody(content []byte, contentType []string) *Body {
	return &Body{bytes: content, contentType: contentType, length: []string{strconv.Itoa(len(content))}}
}

// size returns the body's length in bytes; nil is none.
func (b *Body) size() int {
	if b == nil {
		return 0
	}
	return len(b.bytes)
}

// Encode returns v as a JSON body.
func Encode(v any) (*Body, error) {
	content, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return NewBody(content, JSONType), nil
}

// Respond returns v as the answer of a handler.
func Respond(v any) (Answer, error) { return Indexed(v, 0) }

// Indexed is Respond for a value that has changed last with that index of the allocation.
func Indexed(v any, index uint64) (Answer, error) {
	b, err := Encode(v)
	return Answer{Body: b, Index: index}, err
}

// Shared is Respond for a value with an index that is not the allocation's.
func Shared(v any, index uint64) (Answer, error) {
	result, err := Indexed(v, index)
	result.Shared = true
	return result, err
}

// PrettyIndent is Nomad's.
const PrettyIndent = "    "

// pretty returns the body indented; one that is not JSON stays as it is.
func (b *Body) pretty() *Body {
	var indented bytes.Buffer
	if json.Indent(&indented, b.bytes, "", PrettyIndent) != nil {
		return b
	}
	return NewBody(indented.Bytes(), b.contentType)
}

// write sends the answer. Its only error is that the client has gone, which is not reported. The headers are assigned
// in canonical form, since Set allocates a slice for each.
func (a Answer) write(w http.ResponseWriter, status int) {
	header := w.Header()
	if a.Body != nil {
		if len(a.Body.bytes) > 0 {
			header["Content-Type"] = a.Body.contentType
		}
		header["Content-Length"] = a.Body.length
	}
	if a.Index != 0 || status == http.StatusConflict { // 0 for a variable that is not there, or is not shown
		header["X-Nomad-Index"] = []string{strconv.FormatUint(a.Index, 10)}
	}
	if a.read && a.Index != 0 {
		header["X-Nomad-Knownleader"], header["X-Nomad-Lastcontact"] = knownLeader, lastContact
	}
	if a.NextToken != "" {
		header["X-Nomad-Nexttoken"] = []string{a.NextToken}
	}
	w.WriteHeader(status)
	if a.Body != nil {
		_, _ = w.Write(a.Body.bytes)
	}
}

// Cache keeps the latest encoding of one kind of answer. A single entry is enough for a process that runs one
// allocation, where all are shown the same. Several requests that miss at once encode several times; one of them stays.
type Cache struct {
	latest atomic.Pointer[cached]
}

// CacheKey identifies what an encoding was made from: equal keys, equal bytes.
type CacheKey struct {
	Alloc   string
	Version uint64
	Shown   *api.Allocation // instead of both
	Extra   string
}

type cached struct {
	key  CacheKey
	body *Body
}

// Get returns the encoding for key, or else that of the value that fresh returns, and keeps it. Failures aren't kept.
func (c *Cache) Get(key CacheKey, fresh func() any) (*Body, error) {
	if kept := c.latest.Load(); kept != nil && kept.key == key {
		return kept.body, nil
	}
	b, err := Encode(fresh())
	if err != nil {
		return nil, err
	}
	c.latest.Store(&cached{key: key, body: b})
	return b, nil
}
