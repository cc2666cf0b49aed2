package client_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/internal/must"
	"taskapi/internal/privatefile"
)

const id = "115ef685-6b9e-3eaf-e74b-6b04f094ebca"

// newDir makes a data directory whose sockets have short paths.
func newDir(t *testing.T) datadir.Dir {
	t.Helper()
	dir := must.ShortDir(t)
	return datadir.Dir(dir)
}

// lock locks the allocation and saves it.
func lock(t *testing.T, dir datadir.Dir, over bool) *datadir.Lock {
	t.Helper()
	l := must.Get(dir.Lock(id, dir.Store("1"), slog.New(slog.DiscardHandler)))(t)
	must.OK(t, l.State().Put(interfaces.Saved{Alloc: &api.Allocation{ID: id}, Terminal: over}))
	return l
}

// serve answers on the operator's socket, to the holder of the token "good".
func serve(t *testing.T, dir datadir.Dir, handler http.HandlerFunc) {
	t.Helper()
	must.OK(t, privatefile.Write(dir.OperatorToken(id), []byte("good\n")))
	l := must.Get(net.Listen("unix", dir.OperatorSocket(id)))(t)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Nomad-Token") != "good" {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		w.Header().Set("X-Nomad-Index", "7")
		handler(w, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }() // until Close
	t.Cleanup(func() { s.Close(); <-done })
}

func answer(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, body) }
}

func fail(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "it fails", status) }
}

// TestLocate finds an allocation in every state that a command may find it in.
func TestLocate(t *testing.T) {
	short := client.Timeouts{Busy: 50 * time.Millisecond}
	for name, tc := range map[string]struct {
		set      func(*testing.T, datadir.Dir)
		timeouts client.Timeouts
		want     client.Holder
		err      error
	}{
		"never was": {func(*testing.T, datadir.Dir) {}, short, client.Unreadable, state.ErrNotFound},
		"abandoned": {func(t *testing.T, d datadir.Dir) { lock(t, d, false).Close() }, short, client.Nobody, nil},
		"ended":     {func(t *testing.T, d datadir.Dir) { lock(t, d, true).Close() }, short, client.Ended, nil},
		"starting": {func(t *testing.T, d datadir.Dir) { hold(t, d) }, client.Timeouts{}, client.Changing,
			client.ErrNoAnswer},
		"starts not": {func(t *testing.T, d datadir.Dir) { hold(t, d) }, short, client.Hanging, client.ErrNoAnswer},
		"serving": {func(t *testing.T, d datadir.Dir) { hold(t, d); serve(t, d, answer(`{"ID": "x"}`)) }, short,
			client.Serving, nil},
		"failing": {func(t *testing.T, d datadir.Dir) { hold(t, d); serve(t, d, fail(500)) }, short, client.Hanging, nil},
		"senseless": {func(t *testing.T, d datadir.Dir) { hold(t, d); serve(t, d, answer("x")) }, short, client.Hanging,
			client.ErrNoAnswer},
		"refusing": {func(t *testing.T, d datadir.Dir) {
			hold(t, d)
			serve(t, d, answer("{}"))
			must.OK(t, privatefile.Write(d.OperatorToken(id), []byte("bad")))
		}, short, client.Refusing, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			tc.set(t, dir)
			c := client.New(dir, id)
			defer c.Close()
			found := c.Locate(t.Context(), tc.timeouts)
			if found.Holder != tc.want || tc.err != nil && !errors.Is(found.Err, tc.err) {
				t.Fatalf("found %v, %v; want %v, %v", found.Holder, found.Err, tc.want, tc.err)
			}
			if tc.want == client.Serving && (found.Alloc.ID != "x" || string(found.Body) != `{"ID": "x"}`) {
				t.Errorf("answered %+v, %s", found.Alloc, found.Body)
			}
		})
	}
}

// hold keeps the allocation locked until the test ends.
func hold(t *testing.T, dir datadir.Dir) {
	l := lock(t, dir, false)
	t.Cleanup(func() { l.Close() })
}

// TestRequests are Nomad's, with the operator's token.
func TestRequests(t *testing.T) {
	dir := newDir(t)
	hold(t, dir)
	var got []string
	serve(t, dir, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // of a request that is there
		got = append(got, fmt.Sprintf("%s %s %t", r.Method, r.URL.Path, strings.Contains(string(body), `"JobModifyIndex":3`)))
		if r.URL.Query().Get("force") == "true" {
			http.Error(w, "it can't be", http.StatusConflict)
			return
		}
		fmt.Fprint(w, `{}`)
	})
	c := client.New(dir, id)
	defer c.Close()
	job := "a job"
	if _, index, err := c.Changed(t.Context(), 6); index != 7 || err != nil {
		t.Errorf("index %d, %v; want 7", index, err)
	}
	if _, err := c.Plan(t.Context(), &api.Job{ID: &job}); err != nil {
		t.Error(err)
	}
	err := c.Register(t.Context(), &api.Job{ID: &job}, 3, false, true)
	if s, ok := errors.AsType[*client.StatusError](err); !ok || s.Status != http.StatusConflict ||
		s.Message != "it can't be" {
		t.Errorf("a refusal is %v", err)
	}
	if err := c.Stop(t.Context(), client.StopOptions{Now: true}); err != nil {
		t.Error(err)
	}
	want := []string{
		"GET /v1/allocation/" + id + " false", "PUT /v1/job/a job/plan false", "PUT /v1/jobs true",
		"PUT /v1/allocation/" + id + "/stop false",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("sent %q, want %q", got, want)
	}
	if !c.ServedBy(t.Context(), os.Getpid()) || c.ServedBy(t.Context(), 1) {
		t.Error("the listener is not this process")
	}
	if pid, err := c.Signal(t.Context(), syscall.Signal(0)); pid != os.Getpid() || err != nil {
		t.Errorf("a signal went to %d, %v", pid, err)
	}
}

// TestNobodyToSignal is an error of its own.
func TestNobodyToSignal(t *testing.T) {
	c := client.New(newDir(t), id)
	defer c.Close()
	if _, err := c.Signal(t.Context(), syscall.SIGTERM); !errors.Is(err, client.ErrNoAnswer) {
		t.Errorf("%v", err)
	}
}
