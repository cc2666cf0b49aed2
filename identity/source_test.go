package identity_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/identity"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

func setOf(forgers ...tokenIssuer) []byte {
	var keys []string
	for _, f := range forgers {
		keys = append(keys, f.JWK(""))
	}
	return []byte(`{"keys":[` + strings.Join(keys, ",") + `]}`)
}

func TestFileSourceFollowsItsFile(t *testing.T) {
	a, b := newIssuer("a", 'a'), newIssuer("b", 'b')
	path := t.TempDir() + "/jwks.json"
	if _, err := identity.OpenFileSource(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("no file: %v", err)
	}
	write(t, path, setOf(a), 0o644)
	source := must.Get(identity.OpenFileSource(path))(t)
	for _, step := range []struct {
		name    string
		do      func() error
		changed bool
		err     error
		ids     []string
	}{
		{"nothing", func() error { return nil }, false, nil, []string{"a"}},
		{"rewritten alike", func() error { return os.WriteFile(path, setOf(a), 0o644) }, false, nil, []string{"a"}},
		{"another key of the same length", func() error { return os.WriteFile(path, setOf(b), 0o644) }, true, nil,
			[]string{"b"}},
		{"two keys", func() error { return os.WriteFile(path, setOf(a, b), 0o644) }, true, nil, []string{"a", "b"}},
		{"bad", func() error { return os.WriteFile(path, []byte("{"), 0o644) }, false, identity.ErrKeySet,
			[]string{"a", "b"}},
		{"still bad", func() error { return nil }, false, identity.ErrKeySet, []string{"a", "b"}},
		{"gone", func() error { return os.Remove(path) }, false, os.ErrNotExist, []string{"a", "b"}},
		{"there again", func() error { return os.WriteFile(path, setOf(a), 0o644) }, true, nil, []string{"a"}},
		{"replaced by a rename", func() error {
			return errors.Join(os.WriteFile(path+".new", setOf(b), 0o644), os.Rename(path+".new", path))
		}, true, nil, []string{"b"}},
	} {
		must.OK(t, step.do())
		changed, err := source.Reload()
		if changed != step.changed || !errors.Is(err, step.err) || !slices.Equal(source.Keys().IDs(), step.ids) {
			t.Errorf("%s: changed %v, error %v, keys %v; want %v, %v, %v", step.name, changed, err, source.Keys().IDs(),
				step.changed, step.err, step.ids)
		}
	}
}

// A file that is removed, or can't be used, is not trusted for ever: soon not any more in the first case.
func TestFileSourceExpires(t *testing.T) {
	path := t.TempDir() + "/jwks.json"
	set := setOf(newIssuer("a", 'a'))
	for _, test := range []struct {
		name  string
		spoil func() error
		lasts time.Duration
	}{
		{"removed", func() error { return os.Remove(path) }, 10 * time.Second},
		{"bad", func() error { return os.WriteFile(path, []byte("{"), 0o644) }, 24 * time.Hour},
		{"no file", func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }, 24 * time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			write(t, path, set, 0o644)
			source := must.Get(identity.OpenFileSource(path))(t)
			must.OK(t, test.spoil())
			time.Sleep(test.lasts - time.Nanosecond)
			if _, err := source.Reload(); err == nil || source.Keys().Len() != 1 {
				t.Errorf("%s: %v and %d keys at the end of its time, want an error and the key", test.name, err,
					source.Keys().Len())
			}
			time.Sleep(time.Nanosecond)
			if _, err := source.Reload(); err == nil || source.Keys().Len() != 0 ||
				!strings.Contains(err.Error(), "no key of it is trusted any more") {
				t.Errorf("%s: %v and %d keys after it, want an error that says so, and none", test.name, err, source.Keys().Len())
			}
			must.OK(t, os.RemoveAll(path))
			write(t, path, set, 0o644)
			if changed, err := source.Reload(); !changed || err != nil || source.Keys().Len() != 1 {
				t.Errorf("%s: when it is back: %v, %v and %d keys", test.name, changed, err, source.Keys().Len())
			}
		})
	}
}

func TestFileSourceWatch(t *testing.T) {
	a, b := newIssuer("a", 'a'), newIssuer("b", 'b')
	path := t.TempDir() + "/jwks.json"
	write(t, path, setOf(a), 0o644)
	source := must.Get(identity.OpenFileSource(path))(t)
	log := runWatch(t, source.Watch)
	write(t, path, []byte("{"), 0o644)
	eventually(t, "the bad set is reported", func() bool { return strings.Count(log.String(), "keys can't be reloaded") > 0 })
	write(t, path, []byte(`{"keys":[`+b.JWK("")+`,`+skippedKey+`]}`), 0o644)
	eventually(t, "the new set is trusted", func() bool { return slices.Equal(source.Keys().IDs(), []string{"b"}) })
	eventually(t, "the RSA key is warned about", func() bool { return strings.Count(log.String(), `"kid":"rsa-1"`) == 1 })
	if n := strings.Count(log.String(), "key set refused"); n > 2 { // a write that was seen when half done may add one
		t.Errorf("the bad set was reported %d times", n)
	}
}

// TestFileSourceSeesChangesWithinOneTick changes a file so that its length and time of change stay as they were.
func TestFileSourceSeesChangesWithinOneTick(t *testing.T) {
	path := t.TempDir() + "/jwks.json"
	tick := time.Now().Add(time.Hour) // ahead, so that it is never long past
	put := func(f tokenIssuer) {
		write(t, path, setOf(f), 0o644)
		must.OK(t, os.Chtimes(path, tick, tick))
	}
	put(newIssuer("a", 'a'))
	source := must.Get(identity.OpenFileSource(path))(t)
	put(newIssuer("b", 'b'))
	if changed, err := source.Reload(); !changed || err != nil || !slices.Equal(source.Keys().IDs(), []string{"b"}) {
		t.Errorf("changed %v, error %v, keys %v; want the new key", changed, err, source.Keys().IDs())
	}
}

// answers is an issuer's web server: it gives each fetch the next answer, and the last one for ever, and counts.
type answers struct {
	list    []string // a body, or a status
	fetches []time.Duration
	start   time.Time
}

func (a *answers) RoundTrip(*http.Request) (*http.Response, error) {
	a.fetches = append(a.fetches, time.Since(a.start))
	body := a.list[min(len(a.fetches), len(a.list))-1]
	switch body {
	case "down":
		return nil, errors.New("connection refused")
	case "503":
		return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
	}
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func TestURLSourceKeepsToItsSchedule(t *testing.T) {
	a, b := newIssuer("a", 'a'), newIssuer("b", 'b')
	synctest.Test(t, func(t *testing.T) {
		issuer := &answers{start: time.Now(), list: []string{string(setOf(a)), "down", "503", "{", string(setOf(b)), "down"}}
		source := must.Get(identity.NewURLSource(identity.URLSourceConfig{
			URL: "https://issuer.example/jwks", Transport: issuer,
		}))(t)
		if n := source.Keys().Len(); n != 0 {
			t.Errorf("%d keys before Run", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		log := new(polltest.Log)
		done := make(chan struct{})
		go func() { defer close(done); source.Run(ctx, slog.New(slog.NewTextHandler(log, nil))) }()
		at := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after - time.Since(issuer.start))
			synctest.Wait()
			if got := strings.Join(source.Keys().IDs(), " "); got != want {
				t.Errorf("%v after the start: keys %q, want %q", after, got, want)
			}
		}
		const refresh, floor, stale = 5 * time.Minute, 30 * time.Second, 24 * time.Hour
		at(0, "a")
		at(refresh, "a")         // down
		at(refresh+floor, "a")   // 503
		at(refresh+2*floor, "a") // a bad set
		at(refresh+3*floor, "b")
		// From here on it is down for good.
		at(stale+refresh+2*floor, "b")
		at(stale+refresh+3*floor, "")
		cancel()
		<-done
		want := []time.Duration{0, refresh, refresh + floor, refresh + 2*floor, refresh + 3*floor}
		for at := 2*refresh + 3*floor; at <= stale+refresh+3*floor; at += floor {
			want = append(want, at)
		}
		if !slices.Equal(issuer.fetches, want) {
			t.Errorf("fetched at %v, want %v", issuer.fetches, want)
		}
		// Down, 503, a bad set; down again; no key trusted any more.
		if n := strings.Count(log.String(), "can't be reloaded"); n != 5 {
			t.Errorf("%d failures logged, want 5, each once", n)
		}
	})
}

func TestURLSourceFetches(t *testing.T) {
	a := newIssuer("a", 'a')
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		text   string // in the log
		keys   int
	}{
		"good": {func(w http.ResponseWriter, _ *http.Request) { w.Write(setOf(a)) }, "keys reloaded", 1},
		"an endless body": {func(w http.ResponseWriter, _ *http.Request) {
			for _, err := w.Write(make([]byte, 1<<16)); err == nil; _, err = w.Write(make([]byte, 1<<16)) {
			}
		}, "longer than", 0},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
			"status 302", 0},
		"a page":    {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, "key set refused", 0},
		"not found": {http.NotFound, "status 404", 0},
		"cut off midway": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "999")
			w.Write(setOf(a))
		}, "fetch key set", 0},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.answer)
			defer server.Close()
			source := must.Get(identity.NewURLSource(identity.URLSourceConfig{URL: server.URL}))(t)
			log := runWatch(t, source.Run)
			eventually(t, "the log says "+c.text, func() bool { return strings.Count(log.String(), c.text) == 1 })
			if got := source.Keys().Len(); got != c.keys {
				t.Errorf("%d keys, want %d", got, c.keys)
			}
		})
	}
}

func TestURLSourceConfigIsChecked(t *testing.T) {
	for name, c := range map[string]identity.URLSourceConfig{
		"no URL":    {},
		"no scheme": {URL: "issuer.example/jwks"},
		"a file":    {URL: "file:///etc/jwks"},
		"no host":   {URL: "https:///jwks"},
		"a user":    {URL: "https://user:secret@issuer.example/jwks"},
		"not a URL": {URL: "https://[::1/jwks"},
	} {
		source, err := identity.NewURLSource(c)
		if err == nil || source != nil {
			t.Errorf("%s: no error", name)
			continue
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %q shows the password", name, err)
		}
	}
}
