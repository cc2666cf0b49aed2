package faults_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"taskapi/auth"
	"taskapi/handlers/faults"
	"taskapi/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var web = auth.Owner{AllocationID: "a", Task: "web"}

// source is a Set or a File.
type source interface {
	Next(r *http.Request, owner auth.Owner) (int, http.Handler)
}

// serve answers 200 "fine" where there is no fault.
func serve(t *testing.T, s source) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, answer := s.Next(r, web); answer != nil {
			answer.ServeHTTP(w, r)
			return
		}
		_, _ = io.WriteString(w, "fine")
	}))
	t.Cleanup(server.Close)
	return server
}

// get returns what a client sees: the status with the Retry-After and the body, or "broken".
func get(t *testing.T, server *httptest.Server, method, path string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, http.NoBody)
	must.OK(t, err)
	// else the client itself tries a connection that broke again
	server.Client().Transport.(*http.Transport).DisableKeepAlives = true
	response, err := server.Client().Do(r)
	if err != nil {
		return "broken"
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "torn"
	}
	return strings.TrimSpace(response.Status[:3] + " " + response.Header.Get("Retry-After") + " " + string(body))
}

// TestFaults: each request gets the first fault that is for it, as often as it says, and its own answer after that.
func TestFaults(t *testing.T) {
	set := new(faults.Set)
	err := set.Add(
		faults.Fault{Path: "/v1/a", Status: 429, RetryAfter: 1500 * time.Millisecond, Times: 2},
		faults.Fault{Path: "/v1/a", Skip: 1, Status: 503, Body: "later"},
		faults.Fault{Path: "/v1/b/", Cut: true},
		faults.Fault{Path: "/v1/*/c", Tear: true},
		faults.Fault{Method: "put", Status: 500, Always: true},
		faults.Fault{Task: "db", Status: 502, Always: true},
	)
	must.OK(t, err)
	server := serve(t, set)
	for i, c := range []struct{ method, path, want string }{
		{"GET", "/v1/a", "429 2 Too Many Requests"},
		{"GET", "/v1/a/more", "200  fine"},
		{"GET", "/v1/a", "429 2 Too Many Requests"},
		{"GET", "/v1/a", "200  fine"},
		{"GET", "/v1/a", "503  later"},
		{"GET", "/v1/a", "200  fine"},
		{"GET", "/v1/b", "200  fine"},
		{"GET", "/v1/b/x/y", "broken"},
		{"GET", "/v1/b/x/y", "200  fine"},
		{"GET", "/v1/x/c", "torn"},
		{"PUT", "/v1/x", "500  Internal Server Error"},
		{"PUT", "/v1/x", "500  Internal Server Error"},
	} {
		if got := get(t, server, c.method, c.path); got != c.want {
			t.Errorf("request %d, %s %s: got %q, want %q", i+1, c.method, c.path, got, c.want)
		}
	}
	if left := set.Left(); len(left) != 2 || left[0].Status != 500 {
		t.Errorf("left %v, want those that last", left)
	}
	set.Clear()
	if got := get(t, server, "PUT", "/v1/x"); got != "200  fine" {
		t.Errorf("after Clear: %q", got)
	}
}

// TestHang: a request that hangs ends with its client, and with Clear, and not before.
func TestHang(t *testing.T) {
	for _, by := range []string{"the client", "Clear"} {
		synctest.Test(t, func(t *testing.T) {
			set := new(faults.Set)
			must.OK(t, set.Add(faults.Fault{Hang: true}))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r := httptest.NewRequestWithContext(ctx, "GET", "/", http.NoBody)
			status, answer := set.Next(r, web)
			if status != 0 || answer == nil {
				t.Fatalf("got %d, %v", status, answer)
			}
			aborted := make(chan any, 1)
			go func() {
				defer func() { aborted <- recover() }()
				answer.ServeHTTP(httptest.NewRecorder(), r)
			}()
			time.Sleep(time.Hour)
			synctest.Wait()
			if len(aborted) != 0 {
				t.Fatal("it ended by itself")
			}
			if by == "Clear" {
				set.Clear()
			} else {
				leave()
			}
			if got, _ := (<-aborted).(error); !errors.Is(got, http.ErrAbortHandler) {
				t.Errorf("ended by %s: %v", by, got)
			}
		})
	}
}

// TestDelay: an answer is late by the delay, and no later.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := new(faults.Set)
		must.OK(t, set.Add(faults.Fault{Delay: time.Minute}, faults.Fault{Delay: time.Second, Status: 503}))
		for _, want := range []struct {
			status int
			after  time.Duration
		}{{0, time.Minute}, {503, time.Second}, {0, 0}} {
			begun := time.Now()
			status, _ := set.Next(httptest.NewRequestWithContext(t.Context(), "GET", "/", http.NoBody), web)
			if took := time.Since(begun); status != want.status || took != want.after {
				t.Errorf("got %d after %v, want %d after %v", status, took, want.status, want.after)
			}
		}
	})
}

// TestParse: a file says what is wrong with it, and where.
func TestParse(t *testing.T) {
	good := `{"faults": [{"task": "web", "method": "GET", "path": "/v1/x", "skip": 1, "times": 2,
		"delay": "10ms", "status": 429, "retry_after": "1s", "body": "b"},
		{"hang": true, "always": true}, {"cut": true}, {"tear": true}]}`
	got, err := faults.Parse([]byte(good))
	if err != nil || len(got) != 4 || got[0] != (faults.Fault{
		Task: "web", Method: "GET", Path: "/v1/x", Skip: 1, Times: 2, Delay: 10 * time.Millisecond, Status: 429,
		RetryAfter: time.Second, Body: "b",
	}) || !got[1].Hang || !got[1].Always || !got[2].Cut || !got[3].Tear {
		t.Errorf("got %+v, %v", got, err)
	}
	for src, want := range map[string]string{
		``:                                      "the file is empty",
		`[]`:                                    "an array is no object",
		`{}`:                                    `no "faults"`,
		"{\n\"faults\": [\n}":                   "line 3",
		`{"fault": []}`:                         `unknown field "fault"`,
		`{"faults": []} x`:                      "something follows",
		`{"faults": [{}]}`:                      "fault 1: invalid fault: it says nothing",
		`{"faults": [{"cut":true},{"stat":1}]}`: `fault 2: invalid fault: unknown field "stat"`,
		`[{"cut": true}]`:                       `invalid fault: an array is no object: give {"faults": [`,
		`{"faults": {"cut": true}}`:             `invalid fault: "faults" is an object: give an array`,
		`{"faults": [7]}`:                       `fault 1: invalid fault: a number is no object`,
		`{"faults": [{"cut": "yes"}]}`:          `fault 1: invalid fault: "cut" is a string: give a boolean`,
		`{"faults": [{"status": "503"}]}`:       `fault 1: invalid fault: "status" is a string: give a whole number`,
		`{"faults": [{"status": 200}]}`:         "status 200 is not one of an error",
		`{"faults": [{"status": 503, "cut": true}]}`:              "more than one of",
		`{"faults": [{"cut": true, "retry_after": "1s"}]}`:        "go with a status",
		`{"faults": [{"status": 429, "retry_after": 1}]}`:         `such as "2s", not 1`,
		`{"faults": [{"status": 429, "retry_after": "1"}]}`:       `such as "2s", not "1"`,
		`{"faults": [{"cut": true, "times": -1}]}`:                "negative",
		`{"faults": [{"cut": true, "times": 1, "always": true}]}`: "times goes without always",
		`{"faults": [{"cut": true, "path": "v1"}]}`:               "does not begin with /",
		`{"faults": [{"cut": true, "path": "/["}]}`:               "is no pattern",
		`{"faults": [` + strings.Repeat(`{},`, 1000) + `{}]}`:     "1001 faults; at most 1000",
		`{"faults": []` + strings.Repeat(` `, 1<<20) + `}`:        "at most 1048576 are read",
	} {
		if _, err := faults.Parse([]byte(src)); !errors.Is(err, faults.ErrFault) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want an ErrFault with %q", src, err, want)
		}
	}
}

// TestFile: what is written counts from the next request on, from its beginning; and a file that can't be used fails
// every request.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults.json")
	write := func(text string) {
		t.Helper()
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	if _, err := faults.OpenFile(path, slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	write(`{"faults": [{"status": 503}]}`)
	file := must.Get(faults.OpenFile(path, slog.New(slog.DiscardHandler)))(t)
	defer file.Close()
	server := serve(t, file)
	expect := func(want string) {
		t.Helper()
		if got := get(t, server, "GET", "/"); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	expect("503")
	expect("200")
	write(`{"faults": [{"status": 502}]}`) // the same size, and maybe the same time
	expect("502")
	expect("200")
	write(`{"faults": [{"status": 2}]}`)
	expect("500  faults of " + path + ": fault 1: invalid fault: status 2")
	must.OK(t, os.Remove(path))
	expect("500  faults of " + path)
	write(`{"faults": []}`)
	expect("200")
}
