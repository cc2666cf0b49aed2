package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/transport"
	"taskapi/internal/ptr"
)

// ofAlloc returns the handler of a path that names an allocation.
func (h *handlers) ofAlloc(own route.Handler) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		return h.to(ctx, r, own, r.Param("alloc"))
	}
}

// ofJob returns the handler of a path that names a job. The job's newest running allocation answers. About the versions
// of the job, the allocation that knows most versions answers. If none runs, the newest ended allocation answers.
func (h *handlers) ofJob(own route.Handler, versions bool) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		all, err := h.named(ctx, r)
		if err == nil && len(all) == 0 {
			if err = h.await(ctx, r); err == nil {
				all, err = h.named(ctx, r)
			}
		}
		if err != nil {
			return route.Answer{}, err
		}
		if len(all) == 0 {
			return h.ofNone(ctx, r, own)
		}
		of := all[0]
		if versions {
			diffs := strings.HasSuffix(r.URL.Path, "/versions") && r.Flag("diffs", false)
			if diffs && !of.ClientTerminalStatus() && !r.Query().Has("diff_version") && !r.Query().Has("diff_tag") {
				return h.ofMachine(func(ctx context.Context, _ *route.Request) (route.Answer, error) {
					return h.differences(ctx, all)
				})(ctx, r)
			}
			of, _ = h.history(ctx, all)
		}
		return h.to(ctx, r, own, of.ID)
	}
}

// ofNone answers with a handler's error for an object that does not exist. The error has the machine's index, so that a
// client can wait until something has changed.
func (h *handlers) ofNone(ctx context.Context, r *route.Request, own route.Handler) (route.Answer, error) {
	r.About(nil)
	defer r.About(h.Machine.Self())
	return own(ctx, r)
}

// startingChild returns the handler of a path that starts a child of a job. The child has its parent's settings.
func (h *handlers) startingChild(own route.Handler) route.Handler {
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		all, err := h.named(ctx, r)
		if err != nil {
			return route.Answer{}, err
		}
		if len(all) > 0 {
			if err := h.Machine.AsStrict(all[:1], all[0].Job); err != nil {
				return route.Answer{}, err
			}
		}
		return h.ofJob(own, false)(ctx, r)
	}
}

// named returns the allocations of the job that a path names, or all for a path that names none. A job's ID is unique
// in a namespace alone. Without a namespace, a request means the job of the default namespace or, if there is none, the
// only one with that ID.
func (h *handlers) named(ctx context.Context, r *route.Request) ([]*api.Allocation, error) {
	if r.Param("job") == "" {
		return h.Machine.Allocations(ctx)
	}
	namespace := r.Query().Get("namespace")
	all, err := h.Machine.OfJob(ctx, namespace, r.Param("job"))
	if err != nil {
		return nil, err
	}
	distinct := map[string]bool{}
	for _, alloc := range all {
		distinct[alloc.Namespace] = true
	}
	if len(distinct) < 2 {
		return all, nil
	}
	if namespace != "" || !distinct[api.DefaultNamespace] {
		namespaces := slices.Sorted(maps.Keys(distinct))
		return nil, route.Invalid("the namespaces %s have a job with the ID %s each: name one, as with ?namespace=%s",
			strings.Join(namespaces, ", "), route.Clip(r.Param("job")), namespaces[0])
	}
	return slices.DeleteFunc(all, func(alloc *api.Allocation) bool {
		return alloc.Namespace != api.DefaultNamespace
	}), nil
}

// tries is how often a request is sent again, when the process that ran the allocation has just left it.
const tries = 3

// to answers a request about one allocation: by the process that runs it, or by the table's own handler when it has
// ended.
func (h *handlers) to(ctx context.Context, r *route.Request, own route.Handler, id string) (route.Answer, error) {
	body, err := readBody(r)
	if err != nil {
		return route.Answer{}, err
	}
	var failed error
	for range tries {
		found, err := h.Machine.Find(ctx, strings.ToLower(id))
		if err == nil && found == nil {
			if err = h.await(ctx, r); err == nil {
				found, err = h.Machine.Find(ctx, strings.ToLower(id))
			}
		}
		switch {
		case err != nil:
			return route.Answer{}, err
		case found == nil:
			r.Body = io.NopCloser(bytes.NewReader(body))
			return h.ofNone(ctx, r, own)
		case found.Ended != nil:
			r.About(found.Ended)
			r.Body = io.NopCloser(bytes.NewReader(body))
			return own(ctx, r)
		}
		var answer route.Answer
		if answer, failed = h.pass(ctx, r, found.Alloc, body); failed == nil {
			return answer, nil
		}
		if _, known := errors.AsType[*apierror.Error](failed); known || route.Denied(failed) || r.Context().Err() != nil {
			return route.Answer{}, failed
		}
	}
	if saved := h.Machine.Saved(strings.ToLower(id)); saved != nil && body == nil && r.Answers() != route.Upgrade {
		r.About(saved)
		return own(ctx, r)
	}
	why := fmt.Sprintf("the taskapi of allocation %s does not answer: it is starting or was killed; try again", id)
	return route.Answer{}, apierror.New(apierror.Unavailable, why).Because(failed)
}

// readBody returns the whole body of a request: nil for a request that only reads.
func readBody(r *route.Request) ([]byte, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil, nil
	}
	if err := r.ReserveBody(0); err != nil {
		return nil, err
	}
	return io.ReadAll(r.Body)
}

// maxAnswer bounds an answer that is not a stream. No route of an allocation has a longer one.
const maxAnswer = 64 << 20

// passed are the headers of a request that the process which runs the allocation gets.
var passed = []string{"Content-Type", "Accept", "Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version",
	"Sec-Websocket-Protocol", "Sec-Websocket-Extensions"}

// pass sends a request to the process that runs an allocation, and returns its answer. Errors: *apierror.Error; any
// other means that the process does not answer.
func (h *handlers) pass(
	ctx context.Context, r *route.Request, alloc *api.Allocation, body []byte,
) (answer route.Answer, err error) {
	if err := route.CheckPassedOn(r.Query()); err != nil {
		return answer, err
	}
	out := &http.Request{Method: r.Method, URL: r.URL, Header: http.Header{}}
	if body != nil {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	for _, name := range passed {
		if values := r.Header.Values(name); values != nil {
			out.Header[name] = values
		}
	}
	if r.Answers() != route.JSON || !r.Query().Has("index") {
		return h.ask(ctx, r, alloc, out)
	}
	err = r.Await(ctx, func(ctx context.Context) (err error) { // that process knows the operator's token alone
		answer, err = h.ask(ctx, r, alloc, out)
		return err
	})
	return answer, err
}

// ask sends a request to the process that runs an allocation. Its answer and its errors are those of pass.
func (h *handlers) ask(
	ctx context.Context, r *route.Request, alloc *api.Allocation, out *http.Request,
) (answer route.Answer, err error) {
	resp, err := h.Machine.Ask(ctx, alloc.ID, out)
	if err != nil {
		return answer, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return upgraded(r, resp)
	}
	length, _ := strconv.ParseInt(resp.Header.Get("Content-Length"), 10, 64)
	if resp.StatusCode == http.StatusOK && r.Answers() != route.JSON && length == 0 {
		return streamed(resp), nil
	}
	defer resp.Body.Close()
	if length > maxAnswer {
		return answer, apierror.New(apierror.Invalid, "the answer is too long to be passed on")
	}
	if length > route.ShortBytes {
		if _, err := r.Reserve(ctx, int(length)); err != nil {
			return answer, err
		}
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer, err
	}
	if endedUnderway(resp.StatusCode, content) {
		return answer, errEnded
	}
	h.noteEvaluation(r, alloc, content)
	answer = route.Answer{
		Body: route.NewBody(content, resp.Header["Content-Type"]), Status: resp.StatusCode,
		NextToken: resp.Header.Get("X-Nomad-Nexttoken"), Shared: true,
	}
	answer.Index, _ = strconv.ParseUint(resp.Header.Get("X-Nomad-Index"), 10, 64)
	return answer, nil
}

// passValue passes a request on with a value as its body. Errors: *apierror.Error.
func (h *handlers) passValue(
	ctx context.Context, r *route.Request, alloc *api.Allocation, want any,
) (route.Answer, error) {
	body, err := json.Marshal(want)
	if err != nil {
		return route.Answer{}, err
	}
	answer, err := h.pass(ctx, r, alloc, body)
	if _, known := errors.AsType[*apierror.Error](err); err != nil && !known {
		err = noAnswer(alloc.ID, err)
	}
	return answer, err
}

// noAnswer returns the error of an allocation whose process does not answer.
func noAnswer(id string, err error) error {
	why := fmt.Sprintf("the taskapi of allocation %s does not answer; try again", id)
	return apierror.New(apierror.Unavailable, why).Because(err)
}

var errEnded = errors.New("the allocation has ended")

// endedUnderway reports whether an answer is the refusal of an allocation that has just ended. No other refusal is
// possible, because the token of the allocation's operator has every right.
func endedUnderway(status int, content []byte) bool {
	words := strings.TrimSpace(string(content[:min(len(content), 64)]))
	return status == http.StatusUnauthorized || status == http.StatusForbidden && words == apierror.Forbidden
}

// streamed returns an answer that lasts.
func streamed(resp *http.Response) route.Answer {
	return route.Answer{
		ContentType: resp.Header["Content-Type"], NoSniff: resp.Header.Get("X-Content-Type-Options") != "",
		Release: func() { resp.Body.Close() },
		Stream: func(ctx context.Context, out *route.StreamWriter) {
			defer context.AfterFunc(ctx, func() { resp.Body.Close() })()
			_, _ = io.CopyBuffer(struct{ io.Writer }{out}, resp.Body, make([]byte, 64<<10)) // either end has gone
		},
	}
}

// upgraded returns an answer that joins the client's connection with that to the allocation's process.
func upgraded(r *route.Request, resp *http.Response) (route.Answer, error) {
	inner, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		return route.Answer{}, errors.New("the connection can't be taken over")
	}
	raw := transport.ConnOf(r.Context())
	return route.Answer{
		Release: func() { inner.Close() },
		Upgrade: func(ctx context.Context, w http.ResponseWriter) error {
			defer inner.Close()
			raw.Patient = true
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return fmt.Errorf("take the connection over: %w", err)
			}
			defer conn.Close()
			var head bytes.Buffer
			fmt.Fprintf(&head, "HTTP/1.1 101 Switching Protocols\r\n")
			_ = resp.Header.Write(&head) // to memory
			head.WriteString("\r\n")
			if _, err := conn.Write(head.Bytes()); err != nil {
				return nil // the client has gone
			}
			done := make(chan struct{})
			go func() { // ends with either connection
				defer close(done)
				if sendAll(inner, buffered) {
					inner.Close()
				}
			}()
			defer context.AfterFunc(ctx, func() { inner.Close() })()
			_, _ = io.Copy(conn, inner)
			conn.Close()
			<-done
			return nil
		},
	}, nil
}

// sendAll copies a client's bytes to a process. It returns true when the client has gone, and false when the process
// reads no more. The last words of that process may still be unread, so its connection must stay open.
func sendAll(to io.Writer, client io.Reader) bool {
	buffer := make([]byte, 32<<10)
	for {
		n, err := client.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return false
			}
		}
		if err != nil {
			return true
		}
	}
}

// noteEvaluation keeps the evaluation that an answer names, so that a client finds the evaluation after the allocation
// has ended. The evaluation of a dispatch belongs to the child job.
func (h *handlers) noteEvaluation(r *route.Request, alloc *api.Allocation, content []byte) {
	var made struct{ EvalID, DispatchedJobID string }
	if r.Method == http.MethodGet || r.Method == http.MethodHead || json.Unmarshal(content, &made) != nil ||
		made.EvalID == "" {
		return
	}
	e := evaluationOf(made.EvalID, alloc.Namespace, alloc.JobID, "job-register", h.Machine.Index())
	if alloc.Job != nil {
		e.Type, e.Priority = ptr.Deref(alloc.Job.Type), ptr.Deref(alloc.Job.Priority)
	}
	if strings.HasSuffix(r.URL.Path, "/stop") {
		e.TriggeredBy = "alloc-stop"
	}
	if made.DispatchedJobID != "" {
		e.JobID = made.DispatchedJobID
	}
	h.Evaluations.Add(e)
}

// jobURL returns the URL of a route below a job's.
func jobURL(id, rest string, query url.Values) *url.URL {
	return &url.URL{
		Path: "/v1/job/" + id + rest, RawPath: "/v1/job/" + url.PathEscape(id) + rest, RawQuery: query.Encode(),
	}
}

// exchange sends a request to an allocation's process, and decodes its answer. Errors: the words of a refusal.
func (h *handlers) exchange(ctx context.Context, id, method string, u *url.URL, body []byte, into any) error {
	r := &http.Request{Method: method, URL: u, Header: http.Header{}}
	if body != nil {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	resp, err := h.Machine.Ask(ctx, id, r)
	if err != nil {
		return noAnswer(id, err)
	}
	defer resp.Body.Close()
	content := http.MaxBytesReader(nil, resp.Body, maxAnswer)
	if resp.StatusCode == http.StatusOK {
		return json.NewDecoder(content).Decode(into)
	}
	words, err := io.ReadAll(content)
	if err != nil || endedUnderway(resp.StatusCode, words) {
		return errEnded
	}
	kind := apierror.Unavailable
	switch resp.StatusCode {
	case http.StatusBadRequest:
		kind = apierror.Invalid
	case http.StatusConflict:
		kind = apierror.Conflict
	}
	return apierror.New(kind, fmt.Sprintf("allocation %s: %s", id, strings.TrimSpace(string(words))))
}
