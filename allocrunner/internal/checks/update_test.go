package checks_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/checks"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// An unchanged check keeps its result, counters and schedule; a changed one starts afresh; others come and go.
func TestUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keep, change, drop := failingCheck("keep", 3, 0), httpCheck("change", "/"), tcpCheck("drop")
		cfg := newConfig(newAlloc(keep, change, drop))
		d := &dialer{err: errors.New("down")}
		requests := &restarts{began: time.Now()}
		cfg.DialContext, cfg.Restart = d.dial, requests.add
		r := start(t, cfg)
		time.Sleep(1500 * time.Millisecond) // two runs of keep
		synctest.Wait()
		before := byName(r)["keep"]
		_, version := r.Results()

		change.Header = map[string][]string{"X": {"y"}} // no part of its ID
		keep.Notes = "changed"
		cfg.Alloc = newAlloc(tcpCheck("added"), change, keep)
		must.OK(t, r.Update(cfg))
		expectStatuses(t, r, map[string]string{"keep": "failure", "change": "pending", "added": "pending"})
		same.As(t, before, byName(r)["keep"], "an unchanged check")
		if _, now := r.Results(); now == version {
			t.Error("other results have the same version")
		}
		time.Sleep(time.Second)
		expectStatuses(t, r, map[string]string{"keep": "failure", "change": "failure", "added": "failure"})
		if diff := cmp.Diff([]string{`2s : healthcheck: check "keep" unhealthy`}, requests.all); diff != "" {
			t.Errorf("the third failure in a row asks for a restart (-want +got):\n%s", diff)
		}

		_, version = r.Results()
		must.OK(t, r.Update(cfg))
		if _, now := r.Results(); now != version {
			t.Errorf("the same checks again: version %d, want %d", now, version)
		}
		cfg.Alloc = newAlloc()
		must.OK(t, r.Update(cfg))
		if got, now := r.Results(); got != nil || now == version {
			t.Errorf("without checks: %v, version %d as before", got, now)
		}
		synctest.Wait()
		ran := len(d.at)
		time.Sleep(time.Minute)
		if len(d.at) != ran {
			t.Errorf("%d runs of checks that are no more", len(d.at)-ran)
		}
	})
}

// Texts are interpolated at an update as at the start: what comes out counts.
func TestUpdateInterpolates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(newAlloc(httpCheck("same", "/fixed"), httpCheck("other", "/${v}")))
		d := &dialer{err: errors.New("down")}
		cfg.DialContext = d.dial
		with := func(v string) func(string, string) string {
			return func(_, s string) string { return strings.ReplaceAll(s, "${v}", v) }
		}
		cfg.Replace = with("one")
		r := start(t, cfg)
		time.Sleep(pastFirst)
		expectStatuses(t, r, map[string]string{"same": "failure", "other": "failure"})
		cfg.Replace = with("two")
		must.OK(t, r.Update(cfg))
		expectStatuses(t, r, map[string]string{"same": "failure", "other": "pending"})
		time.Sleep(pastFirst)
		synctest.Wait()
		if got := byName(r)["other"].Output; !strings.Contains(got, "/two") {
			t.Errorf("output %q, want the new path", got)
		}
	})
}

// New checks of a task that has not begun wait for it, whatever the order of Update and Begin.
func TestUpdateBeforeBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(newAlloc())
		d := &dialer{}
		cfg.DialContext = d.dial
		r := run(t, cfg)
		r.Begin("")
		cfg.Alloc = withTask(newAlloc(tcpCheck("group")), "late", tcpCheck("late"))
		must.OK(t, r.Update(cfg))
		time.Sleep(time.Minute)
		expectStatuses(t, r, map[string]string{"group": "success", "late": "pending"})
		r.Begin("late")
		time.Sleep(pastFirst)
		expectStatuses(t, r, map[string]string{"group": "success", "late": "success"})
	})
}

func TestUpdateThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(newAlloc(tcpCheck("tcp")))
		d := &dialer{}
		cfg.DialContext = d.dial
		r := start(t, cfg)
		time.Sleep(pastFirst)
		synctest.Wait()
		before, version := r.Results()
		bad := tcpCheck("bad")
		bad.PortLabel = "nope"
		cfg.Alloc = newAlloc(bad)
		same.Error(t, checks.ErrInvalid, r.Update(cfg))
		after, now := r.Results()
		if diff := cmp.Diff(before, after); diff != "" || now != version {
			t.Errorf("version %d, want %d; results (-before +after):\n%s", now, version, diff)
		}
		r.Stop()
		cfg.Alloc = newAlloc(tcpCheck("more"))
		same.Error(t, nil, r.Update(cfg), "after Stop")
		r.Begin("")
		if got, _ := r.Results(); got != nil {
			t.Errorf("results after Stop: %v", got)
		}
	})
}

// A check that is another's under the same ID does not take over what was saved for it.
func TestUpdateForgetsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(newAlloc(httpCheck("c", "/")))
		saver := run(t, cfg)
		id := byIDs(saver)[0]
		cfg.Saved = api.AllocCheckStatuses{id: {ID: id, Status: "success"}}
		r := run(t, cfg)
		expectStatuses(t, r, map[string]string{"c": "success"})
		changed := httpCheck("c", "/")
		changed.Body = "other"
		cfg.Alloc = newAlloc(changed)
		must.OK(t, r.Update(cfg))
		r.Begin("")
		expectStatuses(t, r, map[string]string{"c": "pending"})
	})
}

func byIDs(r *checks.Runner) (ids []string) {
	synctest.Wait()
	results, _ := r.Results()
	for id := range results {
		ids = append(ids, id)
	}
	return ids
}
