package handlers_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/internal/must"
)

// TestFault: a fault answers known callers in the place of a route, is recorded as one, and nobody else learns of it.
func TestFault(t *testing.T) {
	s := newServer(t, newAlloc(t), func(c *handlers.Config) {
		c.Fault = func(r *http.Request, owner auth.Owner) (int, http.Handler) {
			switch {
			case owner != taskSocket:
				t.Errorf("asked for the socket of %+v", owner)
			case r.Method == http.MethodPost:
				return 0, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
			case r.URL.Path == "/v1/regions":
				return 418, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418) })
			}
			return 0, nil
		}
	})
	for path, want := range map[string]int{"/v1/regions": 418, "/v1/status/leader": 200} {
		if got := s.do(t, "GET", path, poorToken, ""); got.Status != want {
			t.Errorf("GET %s = %d, want %d", path, got.Status, want)
		}
	}
	if got := s.do(t, "GET", "/v1/regions", "", ""); got.Status != 401 {
		t.Errorf("GET without a token = %d, want 401", got.Status)
	}
	c := s.dial(t)
	must.Get(io.WriteString(c.Conn, "POST /v1/search HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: poor\r\nContent-Length: "+
		"0\r\n\r\n"))(t)
	if got, err := io.ReadAll(c); len(got) != 0 || err != nil {
		t.Errorf("a connection that is cut off: %q, %v", got, err)
	}
	want := []string{"GET /v1/regions 418 failed fault", "POST /v1/search 0 failed fault"}
	if got := lines(s.audited()); !slices.Equal(got, want) {
		t.Errorf("audited %q, want %q", got, want)
	}
}

// lines returns records as lines.
func lines(records []auth.Record) (all []string) {
	for _, r := range records {
		all = append(all, strings.TrimSpace(r.Method+" "+r.Path+" "+strconv.Itoa(r.Status)+" "+string(r.Outcome)+" "+
			r.Reason))
	}
	return all
}

// TestAuditReads: what only reads is recorded when that is wanted, each request once, and what changes something as
// ever.
func TestAuditReads(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		s := newServer(t, newAlloc(t), func(c *handlers.Config) { c.AuditReads = wanted })
		for _, c := range []struct{ method, path, token string }{
			{"GET", "/v1/regions", poorToken},
			{"GET", "/v1/allocation/" + otherID, goodToken},
			{"GET", "/v1/nope", goodToken},
			{"GET", "/v1/allocations", poorToken},
			{"PUT", "/v1/client/allocation/" + otherID + "/restart", goodToken},
			{"GET", "/v1/regions", ""},
		} {
			s.do(t, c.method, c.path, c.token, "")
		}
		want := []string{
			"GET /v1/regions 200 done", "GET /v1/allocation/" + otherID + " 404 failed", "GET /v1/nope 404 failed",
			"GET /v1/allocations 403 denied missing_capability", "PUT /v1/client/allocation/" + otherID + "/restart 404 failed",
		}
		if !wanted {
			want = want[3:]
		}
		if got := lines(s.audited()); !slices.Equal(got, want) {
			t.Errorf("reads %v: audited\n%s\nwant\n%s", wanted, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// slowAuditor takes for a record until its channel is closed.
type slowAuditor chan struct{}

func (a slowAuditor) Audit(auth.Record)     { <-a }
func (slowAuditor) Begin(auth.Record) error { return nil }

// TestRecordBeforeTheAnswer: who has the answer to a change finds its record, however long the answer is.
func TestRecordBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auditor := make(slowAuditor)
		dial, stop := bubbled(t, quietAlloc(t), func(c *handlers.Config) {
			c.Variables, c.Auditor = newFakeVariables(), auditor
		})
		defer stop()
		c := dial()
		defer c.Close()
		body := `{"Items":{"k":"` + strings.Repeat("v", 60<<10) + `"}}`
		fmt.Fprintf(c, "PUT /v1/var/a HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: %s\r\nContent-Length: %d\r\n\r\n%s", operator,
			len(body), body)
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("answered before the record is made: %v", err)
		}
		close(auditor)
		_ = c.SetReadDeadline(time.Time{})
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response, err)
		}
		response.Body.Close()
	})
}
