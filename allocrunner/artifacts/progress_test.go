package artifacts

import (
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/artifacts/fetch"
	"taskapi/internal/same"
)

// TestProgress: an hour's download has few events, the first after ten seconds.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		var last string
		begin := time.Now()
		p := newProgress("https://h/a")
		for range 3600 {
			time.Sleep(time.Second)
			done := time.Since(begin)
			p.show(fetch.Report{Bytes: int64(done / time.Second * 1e6), Total: 3.6e9}, func(_, message string) {
				at = append(at, done)
				last = message
			})
		}
		want := []time.Duration{10 * time.Second, 30 * time.Second, 70 * time.Second, 150 * time.Second, 310 * time.Second,
			630 * time.Second, 1270 * time.Second, 2550 * time.Second}
		same.As(t, want, at, "events")
		if want := "Client is downloading artifacts: 2.6 GB of 3.6 GB of https://h/a"; last != want {
			t.Errorf("the last one says %q, want %q", last, want)
		}
	})
}
