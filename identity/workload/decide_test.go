package workload

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
)

func TestDecide(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return t0.Add(time.Duration(minutes) * time.Minute) }
	token := func(key string, minutes int) *metadata {
		return &metadata{KeyID: key, Audience: []string{"aud"}, IssuedAt: t0, ExpiresAt: at(minutes)}
	}
	foreign := &metadata{KeyID: "new", Audience: []string{"aud", "another"}, IssuedAt: t0, ExpiresAt: at(60)}
	extra := &metadata{KeyID: "new", Audience: []string{"aud"}, IssuedAt: t0, ExpiresAt: at(60),
		ExtraClaims: map[string]string{"team": "blue"}}
	aud := []string{"aud"}
	file := &api.WorkloadIdentity{Audience: aud, File: true}
	env := &api.WorkloadIdentity{Audience: aud, Env: true}
	both := &api.WorkloadIdentity{Audience: aud, File: true, Env: true}
	envTTL := &api.WorkloadIdentity{Audience: aud, Env: true, TTL: time.Hour}
	restarts := &api.WorkloadIdentity{Audience: aud, Env: true, TTL: time.Hour, ChangeMode: "restart"}
	lasting := &api.WorkloadIdentity{Audience: aud, Env: true, ChangeMode: "restart"}
	bothRestart := &api.WorkloadIdentity{Audience: aud, File: true, Env: true, ChangeMode: "restart"}
	never := time.Time{}
	for _, tc := range []struct {
		name string
		now  time.Time
		wi   *api.WorkloadIdentity
		out  issued
		want action
	}{
		{"no file", t0, file, issued{}, action{issue: true}},
		{"a new file", t0, file, issued{File: token("new", 60)}, action{next: at(30)}},
		{"just before its half", at(30).Add(-1), file, issued{File: token("new", 60)}, action{next: at(30)}},
		{"at its half", at(30), file, issued{File: token("new", 60)}, action{issue: true}},
		{"long expired", at(600), file, issued{File: token("new", 60)}, action{issue: true}},
		{"an older key that is trusted", t0, file, issued{File: token("old", 60)}, action{next: at(30)}},
		{"a removed key", t0, file, issued{File: token("removed", 60)}, action{issue: true}},
		{"for others", t0, file, issued{File: foreign}, action{issue: true}},
		{"with other extra claims", t0, file, issued{File: extra}, action{issue: true}},
		{"a newer one could not be written", t0, file, issued{File: token("new", 60), stale: true},
			action{issue: true, next: at(30)}},
		{"the clock was set back a little", t0.Add(-skew), file, issued{File: token("new", 60)}, action{next: at(30)}},
		{"the clock was set back", t0.Add(-skew - 1), file, issued{File: token("new", 60)}, action{issue: true}},

		{"a variable", t0, env, issued{Env: token("new", 60)}, action{next: never}},
		{"a variable can't be renewed", at(59), env, issued{Env: token("new", 60)}, action{}},
		{"nor one with a ttl", at(59), envTTL, issued{Env: token("new", 60)}, action{}},
		{"a variable of a removed key", t0, env, issued{Env: token("removed", 60)}, action{refused: true}},

		{"both", t0, both, issued{File: token("new", 60), Env: token("new", 60)}, action{next: at(30)}},
		{"the variable's key is removed, the file's is not", t0, both,
			issued{File: token("new", 60), Env: token("removed", 60)},
			action{refused: true, next: at(30)}},
		{"the file's key is removed, the variable's is not", t0, both,
			issued{File: token("removed", 60), Env: token("old", 60)}, action{issue: true}},
		{"both keys are removed", t0, both, issued{File: token("removed", 60), Env: token("removed", 60)},
			action{issue: true, refused: true}},

		{"restart: new", t0, restarts, issued{Env: token("new", 60)}, action{next: at(30)}},
		{"restart: at the half", at(30), restarts, issued{Env: token("new", 60)}, action{restart: true}},
		{"restart: a removed key", t0, restarts, issued{Env: token("removed", 60)}, action{restart: true}},
		{"restart: for others", t0, restarts, issued{Env: foreign}, action{restart: true}},
		{"restart: without a ttl, not in time", at(59), lasting, issued{Env: token("new", 60)}, action{}},
		{"restart: without a ttl, a removed key", t0, lasting, issued{Env: token("removed", 60)}, action{restart: true}},
		{"restart: both at the half", at(30), bothRestart, issued{File: token("new", 60), Env: token("new", 60)},
			action{issue: true, restart: true}},
		{"restart: the file was renewed, the restart failed", at(30), bothRestart,
			issued{File: token("new", 120), Env: token("new", 60)},
			action{restart: true, next: at(60)}},
	} {
		trusted := func(m *metadata) bool { return m.KeyID == "new" || m.KeyID == "old" }
		if got := decide(tc.now, tc.wi, identity.Claims{Audience: aud}, tc.out, trusted); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}
