package handlers

import (
	"net/http"

	"taskapi/handlers/apierror"
)

// maxStreams is how many streams a socket has open at once. They may last for ever, and other requests need connections, too: the
// rest of the socket's.
const maxStreams = 64

// outlet is what a stream's lines leave through. Each has the time of an answer to leave; between them a stream may rest as long as
// it likes.
type outlet struct {
	w       http.ResponseWriter
	control *http.ResponseController
	conn    *connection
}

// send writes one line at once. An error is the client's having gone away, or not reading for too long.
func (o *outlet) send(line []byte) error {
	o.conn.enter(writing)
	defer o.conn.enter(serving)
	if _, err := o.w.Write(line); err != nil {
		return err
	}
	if _, err := o.w.Write(newline); err != nil {
		return err
	}
	return o.control.Flush()
}

var newline = []byte("\n")

// stream answers with lines of JSON as they come, until run returns. Errors: TooManyStreams when the socket has too many streams, before
// anything is written. The request and the server's draining are run's to watch.
func (r *request) stream(run func(*outlet)) (answer, error) {
	if r.server.streams.Add(1) > maxStreams {
		r.server.streams.Add(-1)
		return answer{}, apierror.New(apierror.TooManyStreams, maxStreams)
	}
	defer r.server.streams.Add(-1)
	r.w.Header()["Content-Type"] = jsonType
	r.w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		run(&outlet{r.w, http.NewResponseController(r.w), connectionOf(r.Context())})
	}
	return answer{sent: true}, nil
}
