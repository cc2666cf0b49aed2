package workload_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/identity/workload"
	"taskapi/internal/must"
)

// TestRenew: what is due by the configured clock is done when Renew returns, with no Run beside it.
func TestRenew(t *testing.T) {
	ring, now, file := identitytest.Keyring(t), time.Now(), ""
	config := configOf(ring)
	config.Now = func() time.Time { return now }
	manager := workload.New(config)
	dir := t.TempDir()
	tokens := manager.Task(&api.Task{Name: "t", Identity: &api.WorkloadIdentity{File: true}})
	must.Get(tokens.Start(workload.Host{Dir: dir, WriteFile: func(_ string, data []byte) error {
		file = string(data)
		return nil
	}}))(t)
	defer tokens.Stop()
	renewed := func(what string, want bool) {
		t.Helper()
		before := file
		manager.Renew(t.Context())
		if got := file != before; got != want {
			t.Fatalf("%s: renewed %v, want %v", what, got, want)
		}
		read, err := identity.Check(file)
		if err != nil || read.Claims.ExpiresAt < now.Add(30*time.Minute).Unix() || !ring.Keys().Has(read.KeyID) {
			t.Fatalf("%s: %+v, %v at %v", what, read, err, now)
		}
	}
	renewed("at once", false)
	now = now.Add(29 * time.Minute)
	renewed("before half of its life", false)
	now = now.Add(2 * time.Minute)
	renewed("after half of its life", true)
	old := identitytest.Rotate(t, ring)
	renewed("a rotation", false)
	must.OK(t, ring.Remove(old))
	renewed("a removed key", true)
}

// TestClockSet: what is due by the new time is done at once.
func TestClockSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		config := configOf(identitytest.Keyring(t))
		config.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		manager := workload.New(config)
		var written atomic.Int32
		tokens := manager.Task(&api.Task{Name: "t", Identity: &api.WorkloadIdentity{File: true}})
		host := workload.Host{Dir: t.TempDir(), WriteFile: func(string, []byte) error { written.Add(1); return nil }}
		must.Get(tokens.Start(host))(t)
		defer tokens.Stop()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go manager.Run(ctx)
		synctest.Wait()
		ahead.Store(int64(45 * time.Minute))
		manager.ClockSet()
		synctest.Wait() // in which no time goes by
		if got := written.Load(); got != 2 {
			t.Errorf("the token was written %d times, want twice", got)
		}
	})
}
