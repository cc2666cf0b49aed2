package route

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/transport"
)

// Request is an authenticated request: net/http's, who sent it, and the parameters of its path. It is reused after the
// handler has returned, so a handler must not keep it.
type Request struct {
	*http.Request
	Principal *auth.Principal
	Namespace string // of its variable, once that is known; for the record

	subject    Alloc // that the request is about; nil for the caller's own
	socket     *socket
	conn       *transport.Conn
	w          http.ResponseWriter
	matched    *Route
	parsed     url.Values // the query; see parseQuery
	Unrecorded error      // why a change goes on without a record; nil for one that has it, or needs none
	recorded   bool       // its result is
	held       hold       // memory for the answer, until it is sent
	making     bool       // it has the socket's turn to make an answer; see EnterMaking
	waited     bool       // a blocking query has waited: an answer that is made again does not wait
}

// Param returns the named parameter of the path, decoded: chi matches the escaped path.
func (r *Request) Param(name string) string {
	value := r.PathValue(name)
	if !strings.Contains(value, "%") { // as nearly always
		return value
	}
	decoded, err := url.PathUnescape(value)
	if err != nil { // can't be, since net/url has escaped the path; the text matches nothing
		return value
	}
	return decoded
}

// recheck decides again on a request that has waited: its token may have expired or been revoked meanwhile. Errors:
// *auth.Denial.
func (r *Request) recheck() error {
	s := r.socket
	if denial := s.config.Authenticator.Recheck(r.Request, r.Principal, s.owner, r.conn.Peer); denial != nil {
		return denial
	}
	return nil
}

// Lacking records that the caller lacks the right to its request, and returns the *auth.Denial.
func (r *Request) Lacking() error { return r.socket.lacking(r, r.matched.AnyOf) }

// Peer returns the process that has sent the request.
func (r *Request) Peer() auth.Peer { return r.conn.Peer }

// Owner returns whose socket the request has come on.
func (r *Request) Owner() auth.Owner { return r.socket.owner }

// Answers returns the form of the route's answers.
func (r *Request) Answers() AnswerKind { return r.matched.Answer }

// Sent counts an answer of that many bytes against the socket's pace.
func (r *Request) Sent(bytes int) { r.socket.Sent(bytes) }

// Answered tells the agent that the client has seen the allocation up to an index, before the answer is complete.
func (r *Request) Answered(index uint64) { r.socket.config.Answered(r.socket.owner, index) }

// Need returns a *auth.Denial, which it records, for a caller without the capability. It is for checks that depend on
// more than the route.
func (r *Request) Need(c auth.Capability) error {
	if r.socket.config.Authenticator.Authorize(r.Principal, auth.CapabilitySet(c)) == nil {
		return nil
	}
	return r.socket.lacking(r, auth.CapabilitySet(c))
}

// parseQuery reads the query. A pair that can't be parsed is an error, since the query would mean something else
// without it.
func (r *Request) parseQuery() error {
	if r.parsed != nil {
		return nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return Invalid("the query string can't be read: %v", err)
	}
	r.parsed = query
	return nil
}

// noQuery is the empty query of most requests. It is not changed.
var noQuery = url.Values{}

// Query returns the parsed query, which is not changed. When a handler is called, it has been parsed without an error.
func (r *Request) Query() url.Values {
	if r.parsed == nil {
		return noQuery
	}
	return r.parsed
}

// Flag returns a true-or-false parameter of the query, which the route names; see Route.Flags. Without the parameter,
// it returns absent.
func (r *Request) Flag(name string, absent bool) bool {
	value, _ := FlagOf(r.Query(), name, absent) // checkQuery has found it right
	return value
}

// FlagOf reads a true-or-false parameter of a query. A bare name ("?resources") is true.
func FlagOf(query url.Values, name string, absent bool) (bool, error) {
	if !query.Has(name) {
		return absent, nil
	}
	text := query.Get(name)
	if text == "" {
		return true, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, Invalid("%s must be true or false, not %s", name, Clip(text))
	}
	return value, nil
}

// pretty reports whether the answer shall be indented. Nomad takes any value but "0"; "false" is understood, too.
func (r *Request) pretty() bool {
	if r.URL.RawQuery == "" || !strings.Contains(r.URL.RawQuery, "pretty") {
		return false
	}
	value := r.Query().Get("pretty")
	return r.Query().Has("pretty") && value != "0" && value != "false"
}

// checkQuery refuses a query that can't be read, flags that are neither true nor false, and a request for another
// region. A client may accept a stale server (stale=true); this one never is.
func (r *Request) checkQuery() error {
	if r.URL.RawQuery == "" {
		return nil
	}
	if err := r.parseQuery(); err != nil {
		return err
	}
	for _, name := range r.matched.flags {
		if _, err := FlagOf(r.parsed, name, false); err != nil {
			return err
		}
	}
	if _, err := FlagOf(r.parsed, "stale", false); err != nil {
		return err
	}
	if region := r.Query().Get("region"); region != "" && region != r.socket.config.Region {
		return apierror.New(apierror.NoRegion)
	}
	return nil
}

// CheckPassedOn refuses a query that brings another token than the one that was checked: a request that is passed on
// has its token in a header.
func CheckPassedOn(query url.Values) error {
	if query.Has("token") {
		return Invalid("a token belongs into X-Nomad-Token or Authorization: Bearer, since addresses end up in logs")
	}
	for _, text := range query["ws_handshake"] {
		if set, err := strconv.ParseBool(text); set || err != nil {
			return Invalid("ws_handshake announces another token, in the first message: leave it out, and send the token in " +
				"X-Nomad-Token")
		}
	}
	return nil
}

// UUIDLength is the length of a UUID with its hyphens, RFC 9562 section 4. uuid.Validate alone accepts three more
// forms.
const UUIDLength = 36

// CheckUUID returns an error for a text that is no UUID; what is the text's name for the client.
func CheckUUID(what, id string) error {
	if len(id) != UUIDLength {
		return Invalid("%s %s must be a UUID of %d characters, not %d", what, Clip(id), UUIDLength, len(id))
	}
	if uuid.Validate(id) != nil {
		return Invalid("%s %s must be a UUID: hexadecimal digits in groups of 8-4-4-4-12", what, Clip(id))
	}
	return nil
}

// clipLength bounds the part of a request that an error message repeats.
const clipLength = 64

// Clip returns text quoted for a message, cut to clipLength.
func Clip(text string) string {
	if len(text) <= clipLength {
		return strconv.Quote(text)
	}
	return strconv.Quote(text[:clipLength]) + "..."
}

// Decode reads the body as one JSON value into v, as Nomad does: it takes any content type and ignores unknown fields.
// An empty body is an error unless optional; it leaves v alone. Anything after the value is an error.
func (r *Request) Decode(v any, optional bool) error {
	if r.held.bytes == 0 {
		if err := r.ReserveBody(0); err != nil {
			return err
		}
	}
	decoder := json.NewDecoder(r.Body)
	err := decoder.Decode(v)
	if err == nil {
		err = trailing(decoder)
	}
	if empty := optional && errors.Is(err, io.EOF); err != nil && !empty {
		return bodyError(err)
	}
	return r.recheck() // the body may have been slow
}

// trailing returns an error when anything but white space follows the value.
func trailing(decoder *json.Decoder) error {
	_, err := decoder.Token()
	var tooLarge *http.MaxBytesError
	switch {
	case err == io.EOF:
		return nil
	case errors.As(err, &tooLarge), errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return errors.New("there is more after the JSON value")
}

// bodyError classifies a failure to read or decode a body.
func bodyError(err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return apierror.New(apierror.UndecodableBody, fmt.Sprintf("it did not arrive within %v", transport.RequestTimeout))
	case errors.Is(err, context.Canceled):
		return err
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return apierror.New(apierror.UndecodableBody, apierror.WrongJSON(wrong, "{}, or with the fields of the request"))
	}
	return apierror.New(apierror.UndecodableBody, err)
}

// Denied reports whether a request ended because its token is not valid any more.
func Denied(err error) bool {
	_, denied := errors.AsType[*auth.Denial](err)
	return denied
}

// Invalid returns the error for a request that is wrong in the way that the words say.
func Invalid(format string, args ...any) error {
	return apierror.New(apierror.Invalid, fmt.Sprintf(format, args...))
}
