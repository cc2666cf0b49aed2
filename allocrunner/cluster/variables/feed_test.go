package variables_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestFeed: a reader gets each change of the variables of all namespaces once, with the metadata: writes, both ends of
// a lock's life, its expiry among them, and deletions. The renewal of a lock is no change.
func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boot := "boot"
		f := newVariables(t).at(newSealer(t), &boot)
		f.put("before", "k", "v")
		feed := f.OfTask(ns, "job").Feed()
		done := feed.Read(t.Context())
		_, number, _ := feed.Since(0)
		want := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var changes []*variables.Change
			changes, number, _ = feed.Since(number)
			var got []string
			for _, c := range changes {
				m := c.Value()
				line := fmt.Sprintf("%s:%s %d-%d", m.Namespace, m.Path, m.CreateIndex, m.ModifyIndex)
				if m.Lock != nil {
					line += " locked by " + m.Lock.ID + " for " + m.Lock.TTL
				}
				if c.Gone {
					line += " gone"
				}
				if m.CreateTime == 0 || m.ModifyTime < m.CreateTime {
					t.Errorf("%s: its times are %d and %d", line, m.CreateTime, m.ModifyTime)
				}
				got = append(got, line)
			}
			same.As(t, want, got, "reported")
		}
		want()
		made := f.put("a", "k", strings.Repeat("secret", 1000))
		at := func(path string, v *api.Variable) string {
			return fmt.Sprintf("%s:%s %d-%d", v.Namespace, path, v.CreateIndex, v.ModifyIndex)
		}
		want(at("a", made))
		other := variable("a", "k", "v")
		other.Namespace = "prod"
		elsewhere, _, err := f.Put(t.Context(), other, nil)
		must.OK(t, err)
		want(at("a", elsewhere))
		locked, _, err := f.Acquire(t.Context(), &api.Variable{
			Namespace: ns, Path: "a", Lock: &api.VariableLock{ID: "mine", TTL: "10s", LockDelay: "5s"},
		})
		must.OK(t, err)
		want(at("a", locked) + " locked by mine for 10s")
		_, _, err = f.Renew(t.Context(), ns, "a", "mine")
		must.OK(t, err)
		want()
		time.Sleep(24 * time.Second)
		want()
		time.Sleep(2 * time.Second)
		free := f.read("a")
		want(at("a", free))
		must.Get(f.Delete(t.Context(), ns, "a", nil))(t)
		want(at("a", free) + " gone")
		done()
		synctest.Wait()
	})
}
