package auth_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/internal/must"
)

// records returns the lines of the audit log.
func (w *fixture) records() []auth.Record {
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

// ignoreTokenID is for tokens whose ID the key ring has drawn.
var ignoreTokenID = cmpopts.IgnoreFields(auth.Record{}, "TokenID")

func TestDenialsAreAudited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
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
		wrong.Reason, wrong.Subject, wrong.KeyID = "wrong_socket", claimsOf(db).Subject, w.ring.Active().ID
		none.Reason, none.Task, none.Status = "no_token", "", 401
		if diff := cmp.Diff([]auth.Record{forged, wrong, none}, w.records(), ignoreTokenID); diff != "" {
			t.Error(diff)
		}
	})
}

// Whose a refused token is stands in the record of its very first use, if a trusted key has signed it, and of none
// else.
func TestFirstRefusalNamesTheToken(t *testing.T) {
	w := newFixture(t)
	w.allocs.set(otherID, auth.Terminal)
	expect := func(what, token string, owner auth.Owner, want auth.Reason, names bool) {
		t.Helper()
		for _, use := range []string{"first", "second"} {
			w.expect(what, token, owner, want)
			records := w.records()
			r := records[len(records)-1]
			if got := [3]string{r.TokenID, r.KeyID, r.Issuer}; names && got != [3]string{what, w.ring.Active().ID, "us"} {
				t.Errorf("%s, %s use: the record names the token %q", what, use, got)
			} else if !names && got != [3]string{} || names == (r.Subject == "") {
				t.Errorf("%s, %s use: the record names the token %q of %q", what, use, got, r.Subject)
			}
		}
	}
	named := func(what string, change func(*identity.Claims)) string {
		return w.with(web, func(c *identity.Claims) {
			c.ID, c.Issuer = what, "us"
			change(c)
		})
	}
	for _, test := range []struct {
		what   string
		change func(*identity.Claims)
		owner  auth.Owner
		want   auth.Reason
	}{
		{"another job", func(c *identity.Claims) { c.JobID = "other" }, web, auth.WrongClaims},
		{"an earlier life", func(c *identity.Claims) { c.Life = "that life" }, web, auth.EarlierLife},
		{"an unknown allocation", func(c *identity.Claims) { c.AllocationID = "99999999-2222-3333-4444-555555555555" }, web,
			auth.UnknownAllocation},
		{"an ended allocation", func(c *identity.Claims) { c.AllocationID = otherID },
			auth.Owner{AllocationID: otherID, Task: "web", UID: 1000}, auth.TerminalAllocation},
		{"another socket", func(*identity.Claims) {}, db, auth.WrongSocket},
		{"expired", func(c *identity.Claims) { c.IssuedAt -= 7200; c.NotBefore, c.ExpiresAt = c.IssuedAt, c.ExpiresAt-7200 },
			web, auth.Expired},
		{"too early", func(c *identity.Claims) { c.NotBefore += 1800 }, web, auth.NotYetValid},
		{"another audience", func(c *identity.Claims) { c.Audience = []string{"vault"} }, web, auth.WrongAudience},
	} {
		expect(test.what, named(test.what, test.change), test.owner, test.want, true)
	}
	good := named("forged", func(*identity.Claims) {})
	expect("forged", forge(good, 1), web, auth.BadSignature, false)
	expect("of an unknown key", unknownKey(good, 1), web, auth.UnknownKey, false)
	expect("malformed", good+".", web, auth.Malformed, false)
}

// A record says which token a request came with, when that was verified, and holds nothing that could fool who reads
// it.
func TestRecordOfARequest(t *testing.T) {
	w := newFixture(t)
	claims := claimsOf(web)
	claims.ID, claims.Issuer = "id-\u202e1", "https://issuer/"+strings.Repeat("i", 400)
	jwt := identitytest.Sign(t, w.ring, claims)
	p := admitted(w.authenticator.Authenticate(request(jwt), web, peer))(t)
	for _, test := range []struct {
		method, path, wantMethod, wantPath string
		status                             int
		want                               auth.Outcome
	}{
		{"PUT", "/v1/client/allocation/x/restart", "PUT", "/v1/client/allocation/x/restart", 200, auth.Done},
		{"PUT", "/x", "PUT", "/x", 0, auth.Begun},
		{"PUT", "/x", "PUT", "/x", 409, auth.Failed},
		{"A\nB", "/a\r\n{\"fake\":1}\x00\x7f\u0085\u2028", `A\u000aB`, `/a\u000d\u000a{"fake":1}\u0000\u007f\u0085\u2028`,
			200, auth.Done},
		{"GET", "/a\u202egpj.exe\u200b\U000e0041\ufeff\u00ad", "GET", `/a\u202egpj.exe\u200b\U000e0041\ufeff\u00ad`, 200,
			auth.Done},
		{strings.Repeat("M", 100), "/" + strings.Repeat("p", 1000), strings.Repeat("M", 16), "/" + strings.Repeat("p", 511),
			200, auth.Done},
		{"GET", "/" + strings.Repeat("ä", 300), "GET", "/" + strings.Repeat("ä", 255), 200, auth.Done},
		{"PUT", "/v1/var/" + strings.Repeat("%61", 128), "PUT", "/v1/var/" + strings.Repeat("%61", 128), 200, auth.Done},
		{"GET", "/\xff\xfe", "GET", `/\xff\xfe`, 200, auth.Done},
		{"GET", "/v1/" + jwt + "/x", "GET", "/v1/[token]/x", 200, auth.Done},
		{"GET", "/v1/" + strings.ReplaceAll(jwt, ".", "%2E"), "GET", "/v1/[token]", 200, auth.Done},
		{"GET", "/v1/" + strings.ReplaceAll(jwt, "eyJ", "%65yJ") + "/x", "GET", "/v1/[token]/x", 200, auth.Done},
		{"GET", "/a-b.c_" + jwt + "." + jwt + "/eyJ.x", "GET", "/a-b.c_[token]/eyJ.x", 200, auth.Done},
		{"GET", "/v1/var/eyJust-a-name-that-is-long-enough", "GET", "/v1/var/eyJust-a-name-that-is-long-enough", 200,
			auth.Done},
		{"GET", "/v1/var/eyJhbGciOiJub25lIn0/eyJhbGciOiJub25lIn0.db.password%2E", "GET",
			"/v1/var/eyJhbGciOiJub25lIn0/eyJhbGciOiJub25lIn0.db.password%2E", 200, auth.Done},
	} {
		got := auth.NewRecord(test.method, test.path, auth.Owner{AllocationID: allocID + "\x1b", Task: "web\u202e"}, peer, p,
			test.status)
		got.Time = time.Time{}
		want := auth.Record{
			Alloc:   allocID + `\u001b`,
			Task:    `web\u202e`,
			Subject: claims.Subject,
			TokenID: `id-\u202e1`,
			KeyID:   w.ring.Active().ID,
			Issuer:  claims.Issuer[:256],
			UID:     1000,
			PID:     4242,
			Method:  test.wantMethod,
			Path:    test.wantPath,
			Outcome: test.want,
			Status:  test.status,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %s: %s", test.method, test.path, diff)
		}
	}
	got := auth.NewRecord("GET", "/", web, peer, p, 200).Runs("db", "/x/"+jwt).About(jwt+"\x1b", "renew")
	if got.Program != "db: /x/[token]" || got.Namespace != `[token]\u001b` || got.Lock != "renew" {
		t.Errorf("%+v", got)
	}
}

// A flood fills neither the log nor the audit, and what is left out is counted, to the last.
func TestFloodsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		for range 1000 {
			w.ask("", web)
		}
		w.ask("garbage", web) // another kind is not drowned
		for range 100 {
			w.ask("garbage", db)
		}
		w.ask(forge(w.token(db), 1), db)
		w.askAs("", web, auth.Peer{UID: 0})
		w.ask("", db)
		time.Sleep(time.Second)
		w.ask("", web)
		time.Sleep(10 * time.Second)
		if n := len(w.records()); n != 20+1+20+1+4 {
			t.Errorf("%d records ten seconds after the bursts, want 20 and the last of both, and four of other kinds", n)
		}
		for range 3 {
			w.ask("", web) // the burst goes on
		}
		time.Sleep(30 * time.Second)
		w.ask("", web) // and is over
		time.Sleep(30 * time.Second)

		type caller struct {
			task   string
			uid    uint32
			reason string
		}
		type count struct {
			records    int
			suppressed uint64
		}
		counts := map[caller]count{}
		for _, record := range w.records() {
			c := caller{record.Task, record.UID, record.Reason}
			counts[c] = count{counts[c].records + 1, counts[c].suppressed + record.Suppressed}
		}
		want := map[caller]count{
			{"web", 1000, "no_token"}:  {20 + 1 + 1 + 1, 980 + 2}, // each event is a record or counted by one
			{"web", 1000, "malformed"}: {1, 0},
			{"web", 0, "no_token"}:     {1, 0},
			{"db", 1000, "no_token"}:   {1, 0},
			{"db", 1000, "malformed"}:  {20 + 1, 79},
			{"db", 1000, "signature"}:  {1, 0},
		}
		if !maps.Equal(counts, want) {
			t.Errorf("got %+v, want %+v", counts, want)
		}
		if got := w.auditLog.Stats().Suppressed; got != 980+2+79 {
			t.Errorf("stats say %d were left out", got)
		}
		lines := w.log.lines()
		if len(lines) != 4 || !strings.Contains(lines[0], "suppressed=0") ||
			!strings.Contains(lines[1], "suppressed=1103") || !strings.Contains(lines[2], "suppressed=0") ||
			!strings.Contains(lines[1], `msg="request refused" alloc=`+allocID+` task=web uid=1000 pid=4242 reason=no_token`) {
			t.Errorf("the log has\n%s", strings.Join(lines, "\n"))
		}
	})
}

// Refusals that come now and then are each written at once, however many there have been.
func TestQuietTimesEndABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		for i := range 5 {
			for range 15 {
				w.ask("", web)
			}
			if n := len(w.records()); n != 15*(i+1) {
				t.Errorf("%d records after %d refusals", n, 15*(i+1))
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// A stolen token leaves a line, whatever else its thief has refused on the same socket for the same reason.
func TestNoTokenHidesBehindAnother(t *testing.T) {
	w := newFixture(t)
	noise := w.token(db)
	for range 100 {
		w.ask(noise, web)
	}
	stolen := w.with(db, func(c *identity.Claims) { c.ID = "stolen" })
	w.expect("stolen", stolen, web, auth.WrongSocket)
	for range 100 {
		w.ask(noise, web)
	}
	var found int
	for _, record := range w.records() {
		if record.TokenID == "stolen" {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d records of the stolen token, want 1", found)
	}
}

// A client of another machine leaves a line, whatever others have refused for the same reason. What it can choose
// itself, its port and its address in an IPv6 network, makes no other client of it.
func TestNoClientHidesBehindAnother(t *testing.T) {
	log := new(lockedBuffer)
	audit := newAuditLog(t, auth.AuditConfig{}, log)
	const first, limit = "192.0.2.1:1000", 20
	want := 0
	for _, client := range []struct {
		address, certificate string
		lines                int
	}{
		{first, "one", limit},
		{"192.0.2.1:2000", "one", 0},
		{"[::ffff:192.0.2.1]:2000", "one", 0},
		{first, "two", limit},
		{"192.0.2.2:1000", "one", limit},
		{"[2001:db8::1]:1000", "one", limit},
		{"[2001:db8::2]:1000", "one", 0},
		{"[2001:db8:0:1::1]:1000", "one", limit},
		{"", "", limit}, // of this machine
	} {
		for range 2 * limit {
			audit.Audit(denied("/", auth.Peer{Address: client.address, Certificate: client.certificate}, nil))
		}
		if want += client.lines; len(log.lines()) != want {
			t.Fatalf("after %+v: %d lines, want %d", client, len(log.lines()), want)
		}
	}
}

// denied returns the record of a refusal.
func denied(path string, peer auth.Peer, p *auth.Principal) auth.Record {
	record := auth.NewRecord("GET", path, web, peer, p, 403)
	record.Outcome, record.Reason = auth.Denied, auth.MissingCapability.String()
	return record
}

// However many callers there are, the log is bounded, and those whose token was verified are counted apart all the
// same.
func TestManyCallersAreSampledToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(lockedBuffer)
		audit := newAuditLog(t, auth.AuditConfig{}, log)
		for uid := range uint32(10_000) {
			audit.Audit(denied("/", auth.Peer{UID: uid}, nil))
		}
		if n := len(log.lines()); n > 1100 {
			t.Errorf("%d records of 10,000 callers", n)
		}
		known := &auth.Principal{
			KeyID:  "one of ours",
			Claims: identity.Claims{AllocationID: allocID, Task: "web"},
		} // another issuer's may have no sub
		audit.Audit(denied("/known", auth.Peer{UID: 20_000}, known))
		if lines := log.lines(); !strings.Contains(lines[len(lines)-1], `"/known"`) {
			t.Errorf("what a known caller did is left out; the last line is %s", lines[len(lines)-1])
		}
		must.OK(t, audit.Close())
		total := uint64(0)
		for _, line := range log.lines() {
			var record auth.Record
			must.OK(t, json.Unmarshal([]byte(line), &record))
			total += 1 + record.Suppressed
		}
		if total != 10_001 {
			t.Errorf("the log accounts for %d requests after its end, want 10,001", total)
		}
	})
}

// Nothing that was let in is left out, however much of the same there is: a command can't hide behind others.
func TestChangesInALoop(t *testing.T) {
	log := new(lockedBuffer)
	audit := newAuditLog(t, auth.AuditConfig{Required: true}, log)
	caller := &auth.Principal{Claims: claimsOf(web), KeyID: "one of ours"}
	wrote := func(status int, program string) {
		record := auth.NewRecord("GET", "/exec", web, peer, caller, status).Runs("db", program)
		if status != 0 {
			audit.Audit(record)
		} else if err := audit.Begin(record); err != nil {
			t.Error(err)
		}
	}
	for _, status := range []int{0, 101, 409} {
		for range 1000 {
			wrote(status, "/bin/true")
		}
		wrote(status, "/bin/cat")
	}
	if lines := log.lines(); len(lines) != 3*1001 || strings.Count(log.String(), `"db: /bin/cat"`) != 3 ||
		audit.Stats().Suppressed != 0 {
		t.Errorf("%d lines, %d of them of the other command, want each", len(lines),
			strings.Count(log.String(), `"db: /bin/cat"`))
	}
}

// What can't be written is not lost in silence, and refuses changes where it is required.
func TestAuditLogThatFails(t *testing.T) {
	w, full, log := newFixture(t), errors.New("disk full"), new(lockedBuffer)
	failing := true
	var written bytes.Buffer
	config := auth.AuditConfig{Required: true, Logger: slog.New(slog.NewTextHandler(log, nil))}
	audit := newAuditLog(t, config, writerFunc(func(p []byte) (int, error) {
		if failing {
			written.Write(p[:10])
			return 10, full
		}
		return written.Write(p)
	}))
	p, _ := w.authenticator.Authenticate(request(w.token(web)), web, peer)
	change := func() auth.Record { return auth.NewRecord("PUT", "/x", web, peer, p, 0) }
	for range 2 {
		audit.Audit(auth.NewRecord("GET", "/", web, peer, nil, 401))
	}
	if s := audit.Stats(); s.Lost != 2 || !errors.Is(s.Last, full) {
		t.Errorf("%+v, want two lost", s)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=ERROR") ||
		!strings.Contains(text, "disk full") {
		t.Errorf("the log has\n%s", text)
	}
	for range 500 { // beyond every allowance
		if err := audit.Begin(change()); !errors.Is(err, auth.ErrAudit) {
			t.Fatalf("a change is let through: %v", err)
		}
	}
	failing = false
	written.WriteString("\n-\n")
	for range 500 {
		if err := audit.Begin(change()); err != nil {
			t.Fatalf("a change is refused: %v", err)
		}
	}
	_, after, _ := strings.Cut(written.String(), "\n-\n")
	lines := strings.SplitSeq(strings.TrimSpace(after), "\n") // what was written in part stands alone
	for line := range lines {
		var record auth.Record
		if err := json.Unmarshal([]byte(line), &record); err != nil || record.Outcome != auth.Begun || record.Status != 0 {
			t.Errorf("%v in line %q", err, line)
		}
	}

	lenient := newAuditLog(t, auth.AuditConfig{}, writerFunc(func([]byte) (int, error) { return 0, full }))
	if err := lenient.Begin(change()); err != nil || lenient.Stats().Lost != 0 {
		t.Errorf("a log that is not required: %v, %+v; want no word of what is about to be done", err, lenient.Stats())
	}
}

// A pipe whose reader has stopped holds up a request once, not every one.
func TestReaderThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := net.Pipe()
		log := must.Get(auth.NewAuditLog(auth.AuditConfig{Open: func() (io.WriteCloser, error) { return writer, nil }}))(t)
		start := time.Now()
		for status := range 500 { // each of its own kind
			log.Audit(auth.Record{Time: time.Now(), Outcome: auth.Failed, Status: status})
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("500 requests waited %v for the reader, want a second at most", took)
		}
		if stats := log.Stats(); stats.Lost != 500 {
			t.Errorf("%d lost, want 500", stats.Lost)
		}
		read := make(chan string)
		go func() {
			text, _ := io.ReadAll(reader)
			read <- string(text)
		}()
		synctest.Wait() // it reads again
		log.Audit(auth.Record{Time: time.Now(), Outcome: auth.Failed, Status: 1000})
		if err := log.Close(); err != nil {
			t.Error(err)
		}
		if text := <-read; !strings.Contains(text, `"status":1000`) {
			t.Errorf("what is written when the reader reads again = %q", text)
		}
	})
}

func TestPipeWithoutReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	must.OK(t, syscall.Mkfifo(path, 0o600))
	if _, err := auth.OpenAuditFile(path); err == nil || !strings.Contains(err.Error(), "nobody reads this pipe") {
		t.Errorf("open a pipe that nobody reads: %v", err)
	}
}

// A log whose file was renamed goes on in a new one, and counts go with it.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	audit, err := auth.NewAuditLog(
		auth.AuditConfig{Open: func() (io.WriteCloser, error) { return auth.OpenAuditFile(path) }},
	)
	must.OK(t, err)
	for range 30 {
		audit.Audit(denied("/", peer, nil))
	}
	must.OK(t, os.Rename(path, path+".1"))
	must.OK(t, audit.Reopen())
	must.OK(t, audit.Close())
	before, err := os.ReadFile(path + ".1")
	if n := bytes.Count(before, []byte("\n")); err != nil || n != 20 {
		t.Errorf("%d lines in the first file, %v; want 20", n, err)
	}
	for range 30 { // too late: each is counted as lost, none as left out
		audit.Audit(denied("/late", peer, nil))
	}
	if s := audit.Stats(); s.Lost != 30 || s.Suppressed != 9 {
		t.Errorf("after the end: %+v", s)
	}
	after, err := os.ReadFile(path)
	if n := bytes.Count(after, []byte("\n")); err != nil || n != 1 || !bytes.Contains(after, []byte(`"suppressed":9`)) {
		t.Errorf("the second file has %s, %v; want the count of the others", after, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// No part of a token is in anything that the authenticator writes or says.
func TestNoTokenIsWrittenAnywhere(t *testing.T) {
	w := newFixture(t, func(c *auth.Config) { c.Limits = auth.Limits{RefusalDelay: 1} })
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
			if _, denial := w.authenticator.Authenticate(r, web, peer); denial != nil {
				answer := httptest.NewRecorder()
				apierror.WriteDenial(answer, denial)
				said.WriteString(denial.Error() + answer.Body.String())
			}
			w.refusals.Lacked(web, r.Method, r.Method, r.URL.EscapedPath(), auth.All)
		}
	}
	everything := said.String() + w.log.String() + w.audit.String() + fmt.Sprint(w.refusals.All())
	for _, token := range tokens {
		for part := range strings.SplitSeq(token, ".") {
			for i := 0; i+24 <= len(part); i++ {
				if strings.Contains(everything, part[i:i+24]) {
					t.Fatalf("a part of a token was written or said:\n%s", everything)
				}
			}
			if raw, err := base64.RawURLEncoding.DecodeString(part); err == nil && len(raw) == 64 &&
				strings.Contains(everything, string(raw)) {
				t.Fatal("a signature was written")
			}
		}
	}
	if !strings.Contains(everything, http.StatusText(http.StatusForbidden)) || len(w.records()) < len(tokens) {
		t.Error("nothing was said or written at all")
	}
}
