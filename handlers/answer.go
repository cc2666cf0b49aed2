package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// answer is what a handler returns, of the kind of its route: a body for JSON, and one of the functions for the others.
type answer struct {
	body   *body
	index  uint64 // of a read that a client can block on, or of a write; 0: no index headers
	read   bool   // nothing was changed; the server sets it
	shared bool   // the index is not the allocation's, but for example that of what allocations share
	status int    // of an answer that is not 200; 204 has no body

	nextToken string // of a list that goes on; empty for none

	// stream writes frames until ctx ends: when the client has gone, or as in whileAuthorized.
	stream      func(ctx context.Context, out *streamWriter)
	contentType []string // of a stream
	noSniff     bool     // of a stream: what a task has written must not be taken for anything else by a browser
	release     func()   // gives back what a stream reads from, whether it has run or not; nil for nothing

	// upgrade takes the connection by http.Hijacker and serves it until ctx ends. If it has not taken it, its error is the answer.
	upgrade func(ctx context.Context, w http.ResponseWriter) error
	// farewell is called before the connection is closed because ctx has ended, with its cause; nil for nothing.
	farewell func(cause error)
}

// body is an encoded body that can be written any number of times. It is never changed once made.
type body struct {
	bytes       []byte
	contentType []string // header values, made once: a write allocates none
	length      []string
}

// The content types of answers, as header values.
var (
	jsonType   = []string{"application/json"}
	binaryType = []string{"application/octet-stream"}
	plainType  = []string{"text/plain; charset=utf-8"}
	openType   = []string{"text/plain; version=0.0.4; charset=utf-8"} // Prometheus' text format
)

// noSniffHeader is for content that others have made.
var noSniffHeader = []string{"nosniff"}

// The values of index headers that never change: this process is its own leader.
var (
	knownLeader = []string{"true"}
	lastContact = []string{"0"}
)

func newBody(content []byte, contentType []string) *body {
	return &body{bytes: content, contentType: contentType, length: []string{strconv.Itoa(len(content))}}
}

// size returns the body's length in bytes; nil is none.
func (b *body) size() int {
	if b == nil {
		return 0
	}
	return len(b.bytes)
}

// encode returns v as a JSON body.
func encode(v any) (*body, error) {
	content, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return newBody(content, jsonType), nil
}

// respond returns v as the answer of a handler.
func respond(v any) (answer, error) {
	b, err := encode(v)
	return answer{body: b}, err
}

// prettyIndent is Nomad's.
const prettyIndent = "    "

// pretty returns the body indented; one that is not JSON stays as it is.
func (b *body) pretty() *body {
	var indented bytes.Buffer
	if json.Indent(&indented, b.bytes, "", prettyIndent) != nil {
		return b
	}
	return newBody(indented.Bytes(), b.contentType)
}

// write sends the answer. Its only error is that the client has gone, which is not reported. The headers are assigned rather than Set, in
// canonical form, since Set allocates a slice for each.
func (a answer) write(w http.ResponseWriter, status int) {
	header := w.Header()
	if a.body != nil {
		if len(a.body.bytes) > 0 {
			header["Content-Type"] = a.body.contentType
		}
		header["Content-Length"] = a.body.length
	}
	if a.index != 0 {
		header["X-Nomad-Index"] = []string{strconv.FormatUint(a.index, 10)}
	}
	if a.read && a.index != 0 {
		header["X-Nomad-Knownleader"], header["X-Nomad-Lastcontact"] = knownLeader, lastContact
	}
	if a.nextToken != "" {
		header["X-Nomad-Nexttoken"] = []string{a.nextToken}
	}
	w.WriteHeader(status)
	if a.body != nil {
		_, _ = w.Write(a.body.bytes)
	}
}

// writeTimeout is for one response, or one frame of a stream: a client that takes longer is cut off.
const writeTimeout = 30 * time.Second
