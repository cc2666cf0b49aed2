package cli

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
)

// TestSayChecks: whoever waits long for an allocation to be healthy sees which checks keep it from that, once for each
// change.
func TestSayChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var said bytes.Buffer
		var err error
		results := api.AllocCheckStatuses{}
		set := func(id, status string) {
			results[id] = api.AllocCheckStatus{ID: id, Check: id, Service: "s", Status: status, Output: "why\u202e\n"}
		}
		set("good", "success")
		set("bad", "failure")
		go sayChecks(ctx, &said, func(context.Context) (api.AllocCheckStatuses, error) { return results, err })
		expect := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := said.String(); got != want {
				t.Errorf("said %q, want %q", got, want)
			}
			said.Reset()
		}
		expect(9*time.Second, "")
		expect(2*time.Second, "taskapi: the latest result of check \"bad\" of service \"s\" is failure: why?\n")
		expect(time.Minute, "")
		set("bad", "success")
		set("good", "failure")
		expect(2*time.Second, "taskapi: the latest result of check \"bad\" of service \"s\" is success: why?\n"+
			"taskapi: the latest result of check \"good\" of service \"s\" is failure: why?\n")
		err = errors.New("its taskapi is gone")
		expect(time.Minute, "")
		end()
	})
}
