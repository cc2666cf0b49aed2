package auth_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskapi/auth"
	"taskapi/identity"
)

// records are the lines of the audit log.
func (w *world) records() []auth.Record {
	w.tb.Helper()
	var all []auth.Record
	for _, line := range w.audit.lines() {
		var record auth.Record
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&record); err != nil {
			w.tb.Fatalf("%v in line %q", err, line)
		}
		all = append(all, record)
	}
	return all
}

func TestDenialsAreAudited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.expect("good", w.token(web), web, auth.NotRefused)
		w.expect("forged", forge(w.token(web), 1), web, auth.BadSignature)
		w.expect("another's", w.token(db), web, auth.WrongSocket)
		w.expect("none", "", operator, auth.NoToken)
		common := auth.Record{
			Time: time.Now(), Alloc: allocID, Task: "web", UID: 1000, PID: 4242, Method: "GET", Path: "/v1/agent/health",
			Outcome: auth.Denied, Status: 403,
		}
		forged, wrong, none := common, common, common
		forged.Reason = "signature"
		wrong.Reason, wrong.Subject = "wrong_socket", claimsOf(db).Subject
		none.Reason, none.Task, none.Status = "no_token", "", 401
		if diff := cmp.Diff([]auth.Record{forged, wrong, none}, w.records()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRecordOfARequest(t *testing.T) {
	w := newWorld(t)
	p, _ := w.door.Authenticate(request(w.token(web)), web, peer)
	jwt := w.token(web)
	for _, test := range []struct {
		method, path, wantMethod, wantPath string
		status                             int
		want                               auth.Outcome
	}{
		{"PUT", "/v1/client/allocation/x/restart", "PUT", "/v1/client/allocation/x/restart", 200, auth.Done},
		{"PUT", "/x", "PUT", "/x", 409, auth.Failed},
		{"A\nB", "/a\r\n{\"fake\":1}\x00\x7f\u0085\u2028", "A?B", "/a??{\"fake\":1}????", 200, auth.Done},
		{strings.Repeat("M", 100), "/" + strings.Repeat("p", 1000), strings.Repeat("M", 16), "/" + strings.Repeat("p", 255), 200, auth.Done},
		{"GET", "/" + strings.Repeat("ä", 200), "GET", "/" + strings.Repeat("ä", 127), 200, auth.Done},
		{"GET", "/\xff\xfe", "GET", "/??", 200, auth.Done},
		{"GET", "/v1/" + jwt + "/x", "GET", "/v1/[token]/x", 200, auth.Done},
		{"GET", "/v1/" + strings.ReplaceAll(jwt, ".", "%2E"), "GET", "/v1/[token]", 200, auth.Done},
	} {
		got := auth.NewRecord(test.method, test.path, web, peer, p, test.status)
		got.Time = time.Time{}
		want := auth.Record{
			Alloc: allocID, Task: "web", Subject: claimsOf(web).Subject, UID: 1000, PID: 4242,
			Method: test.wantMethod, Path: test.wantPath, Outcome: test.want, Status: test.status,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %s: %s", test.method, test.path, diff)
		}
	}
}

// A flood fills neither the log nor the audit, and what is left out is counted.
func TestFloodsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range 1000 {
			w.ask("", web)
		}
		w.ask("garbage", web) // another kind is not drowned
		time.Sleep(time.Second)
		w.ask("", web)
		time.Sleep(time.Second)
		w.ask("", web)

		counts, suppressed := map[string]int{}, uint64(0)
		for _, record := range w.records() {
			counts[record.Reason]++
			suppressed += record.Suppressed
		}
		if diff := cmp.Diff(map[string]int{"no_token": 22, "malformed": 1}, counts); diff != "" || suppressed != 980 {
			t.Errorf("%d suppressed; %s", suppressed, diff)
		}
		if got := w.door.Stats().AuditDropped; got != 980 {
			t.Errorf("stats say %d were left out", got)
		}
		lines := w.log.lines()
		if len(lines) != 3 || !strings.Contains(lines[0], "suppressed=0") || !strings.Contains(lines[1], "suppressed=1000") || !strings.Contains(lines[2], "suppressed=0") ||
			!strings.Contains(lines[1], `msg="request refused" alloc=`+allocID+` task=web uid=1000 pid=4242 reason=no_token`) {
			t.Errorf("the log has\n%s", strings.Join(lines, "\n"))
		}
	})
}

// What can't be written is not lost in silence.
func TestAuditLogThatFails(t *testing.T) {
	full := errors.New("disk full")
	log := auth.NewAuditLog(writerFunc(func([]byte) (int, error) { return 0, full }))
	w := newWorld(t, func(c *auth.Config) { c.Auditor = log })
	w.ask("", web)
	w.ask("", web)
	if n, err := log.Lost(); n != 2 || !errors.Is(err, full) {
		t.Errorf("lost %d, %v", n, err)
	}
	if got := w.door.Stats().AuditLost; got != 2 {
		t.Errorf("stats say %d", got)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// No part of a token is in anything that the door writes or says.
func TestNoTokenIsToldToAnybody(t *testing.T) {
	w := newWorld(t, func(c *auth.Config) { c.Limits = auth.Limits{HoldFor: 1} })
	good := w.token(web)
	tokens := []string{
		good, forge(good, 1), unknownKey(good, 1), w.token(db), good[:len(good)-3], good + good,
		w.with(web, func(c *identity.Claims) { c.NotBefore, c.IssuedAt, c.ExpiresAt = 0, 0, 1 }),
	}
	var said bytes.Buffer
	for range 30 {
		for _, token := range tokens {
			r := request(token)
			r.URL = &url.URL{Path: "/v1/allocation/" + token, RawQuery: "token=" + token}
			r.Header.Set("Authorization", "Bearer "+token)
			if _, denial := w.door.Authenticate(r, web, peer); denial != nil {
				said.WriteString(denial.Error() + denial.Body)
			}
		}
	}
	everything := said.String() + w.log.String() + w.audit.String()
	for _, token := range tokens {
		for part := range strings.SplitSeq(token, ".") {
			for i := 0; i+24 <= len(part); i++ {
				if strings.Contains(everything, part[i:i+24]) {
					t.Fatalf("a part of a token was written or said:\n%s", everything)
				}
			}
			if raw, err := base64.RawURLEncoding.DecodeString(part); err == nil && len(raw) == 64 && strings.Contains(everything, string(raw)) {
				t.Fatal("a signature was written")
			}
		}
	}
	if !strings.Contains(everything, http.StatusText(http.StatusForbidden)) || len(w.records()) < len(tokens) {
		t.Error("nothing was said or written at all")
	}
}
