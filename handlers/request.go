package handlers

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

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/budget"
)

// request is an authenticated request: net/http's, who sent it, and the parameters of its path. It is reused after the handler has
// returned, so a handler must not keep it.
type request struct {
	*http.Request
	Principal *auth.Principal
	Peer      auth.Peer

	server     *socketServer
	w          http.ResponseWriter
	route      chi.Context // the matcher's scratch; the parameters live here
	matched    *Route
	query      url.Values   // parsed on first use
	unrecorded error        // why a change goes on without a record; nil for one that has it, or needs none
	recorded   bool         // its result is
	namespaced string       // the namespace of its variable, once that is known
	held       *budget.Hold // memory for the answer, until it is sent; nil for none
	making     bool         // it has the socket's turn to make an answer; see enterMaking
	waited     bool         // a blocking query has waited: an answer that is made again does not wait
}

// param returns the named parameter of the path, decoded. chi matches the escaped path when there is one and the decoded path
// otherwise, so only the first kind is decoded here.
func (r *request) param(name string) string {
	value := r.route.URLParam(name)
	if r.URL.RawPath == "" {
		return value
	}
	decoded, err := url.PathUnescape(value)
	if err != nil { // can't be, since net/url has parsed the path; the raw text matches nothing
		return value
	}
	return decoded
}

// need refuses a caller without the capability, where that depends on more than the route. Errors: *auth.Denial.
func (r *request) need(c auth.Capability) error {
	denial := r.server.config.Authenticator.Authorize(r.Principal, auth.CapabilitySet(c))
	if denial == nil {
		return nil
	}
	r.server.record(r, denial.Reason.Status(), denial.Reason)
	return denial
}

// values returns the parsed query. Pairs that can't be parsed are an error: without them it would be another query.
func (r *request) values() (url.Values, error) {
	if r.query == nil {
		if r.URL.RawQuery == "" {
			r.query = url.Values{}
			return r.query, nil
		}
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			return nil, invalid("the query string can't be read: %v", err)
		}
		r.query = query
	}
	return r.query, nil
}

// flag returns a true-or-false parameter of the query, as the function flag reads it.
func (r *request) flag(name string, absent bool) (bool, error) {
	query, err := r.values()
	if err != nil {
		return false, err
	}
	return flag(query, name, absent)
}

// flag returns a true-or-false query parameter; absent is the given default, and a bare name ("?resources") is true.
func flag(query url.Values, name string, absent bool) (bool, error) {
	if !query.Has(name) {
		return absent, nil
	}
	text := query.Get(name)
	if text == "" {
		return true, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, invalid("%s must be true or false, not %s", name, clip(text))
	}
	return value, nil
}

// pretty reports whether the answer shall be indented. Nomad takes any value but "0"; "false" is understood, too.
func (r *request) pretty() bool {
	if r.URL.RawQuery == "" || !strings.Contains(r.URL.RawQuery, "pretty") {
		return false
	}
	query, err := r.values()
	if err != nil || !query.Has("pretty") {
		return false
	}
	value := query.Get("pretty")
	return value != "0" && value != "false"
}

// checkPlace refuses a request for another region, whatever its route. A client may let a request be answered by a server that is stale; this
// one never is.
func (r *request) checkPlace() error {
	if r.URL.RawQuery == "" {
		return nil
	}
	query, err := r.values()
	if err != nil {
		return err
	}
	if _, err := flag(query, "stale", false); err != nil {
		return err
	}
	if region := query.Get("region"); region != "" && region != r.server.config.Agent.Region {
		return apierror.New(apierror.NoRegion)
	}
	return nil
}

// alloc returns the allocation that the path names. One that the caller may not see is answered like one that does not exist, with the
// kind that the endpoint has for it. Errors: Invalid when the text is no UUID, unknown.
func (r *request) alloc(unknown apierror.Kind) (Alloc, error) {
	id := r.param("alloc")
	if r.Principal.MaySee(id) {
		if alloc, ok := r.server.config.Allocs.Get(strings.ToLower(id)); ok {
			return alloc, nil
		}
	}
	if err := checkUUID("allocation ID", id); err != nil {
		return nil, err
	}
	return nil, apierror.New(unknown, id)
}

// resource returns the allocation that the path names as the interface of a resource. Errors: those of alloc, NoRoute when it has none.
func resource[T any](r *request, unknown apierror.Kind) (found T, err error) {
	alloc, err := r.alloc(unknown)
	if err != nil {
		return found, err
	}
	found, ok := alloc.(T)
	if !ok {
		return found, apierror.New(apierror.NoRoute)
	}
	return found, nil
}

// visible returns the allocation that lists hold: a caller sees one at most, that of its token.
func (r *request) visible() (Alloc, bool) {
	return r.server.config.Allocs.Get(r.Principal.Claims.AllocationID)
}

// index returns the ModifyIndex of the allocation that is visible, 0 for none.
func (r *request) index() uint64 {
	alloc, ok := r.visible()
	if !ok {
		return 0
	}
	return alloc.Snapshot().ModifyIndex
}

// uuidLength is the length of a UUID with its hyphens, RFC 9562 section 4. uuid.Validate alone accepts three more forms.
const uuidLength = 36

// checkUUID returns an error for what is no UUID. what is what it should be, for the client.
func checkUUID(what, id string) error {
	if len(id) != uuidLength {
		return invalid("%s %s must be a UUID of %d characters, not %d", what, clip(id), uuidLength, len(id))
	}
	if uuid.Validate(id) != nil {
		return invalid("%s %s must be a UUID: hexadecimal digits in groups of 8-4-4-4-12", what, clip(id))
	}
	return nil
}

// clipLength bounds what an error message repeats of a request.
const clipLength = 64

// clip returns text quoted for a message, cut to clipLength.
func clip(text string) string {
	if len(text) <= clipLength {
		return strconv.Quote(text)
	}
	return strconv.Quote(text[:clipLength]) + "..."
}

// maxBody is the usual ceiling of a body, far above the longest, a signal of some hundred bytes.
const maxBody = 64 << 10

// decode reads the body as one JSON value into v, as Nomad does: any content type, unknown fields passed over. An empty body is
// an error unless optional, and leaves v alone then. Anything after the value is an error.
func (r *request) decode(v any, optional bool) error {
	if r.held == nil {
		if err := r.reserveBody(0); err != nil {
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
		return apierror.New(apierror.UndecodableBody, fmt.Sprintf("it did not arrive within %v", requestTimeout))
	case errors.Is(err, context.Canceled):
		return err
	}
	return apierror.New(apierror.UndecodableBody, err)
}
