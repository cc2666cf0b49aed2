package ui

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/cmd/taskapi/internal/httpserve"
	"taskapi/internal/same"
)

// TestSecretsEnd: a link is good for a minute, and a session for twelve hours.
func TestSecretsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t.Context(), Config{Address: httpserve.Address{Socket: "/x"}})
		ask := func(target, cookie string) *http.Response {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, target, nil)
			r.Header.Set("Cookie", cookie)
			s.ServeHTTP(w, r)
			return w.Result()
		}
		old := s.Link()
		time.Sleep(linkTime)
		same.As(t, http.StatusForbidden, ask(old, "").StatusCode, "a link after a minute")
		replaced, link := s.Link(), s.Link()
		same.As(t, http.StatusForbidden, ask(replaced, "").StatusCode, "a link before the latest")
		time.Sleep(linkTime - time.Nanosecond)
		cookie, _, _ := strings.Cut(ask(link, "").Header.Get("Set-Cookie"), ";")
		script := "http://" + s.name + ".localhost/static/ui.js"
		time.Sleep(sessionTime - time.Nanosecond)
		if got := ask(script, "a=b; "+cookie).StatusCode; got != http.StatusOK {
			t.Errorf("a session within its time: %d", got)
		}
		time.Sleep(time.Nanosecond)
		same.As(t, http.StatusUnauthorized, ask(script, cookie).StatusCode, "a session after its time")
	})
}
