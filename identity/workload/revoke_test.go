package workload_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
	"taskapi/identity/identitytest"
	"taskapi/identity/revocation"
	"taskapi/identity/workload"
	"taskapi/internal/must"
	"taskapi/internal/privatefile"
)

// newManager returns a manager of one allocation's tokens, which heeds a list of revocations.
func newManager(ring *identity.Keyring, list *revocation.List) *workload.Manager {
	config := configOf(ring)
	config.Revocations = list
	return workload.New(config)
}

// TestRevokedTokensAreReplaced: a task whose token is revoked, by its ID or with all that was issued until now, finds a
// good one in its file, in the same second, and one that is revoked for another task stays.
func TestRevokedTokensAreReplaced(t *testing.T) {
	list := must.Get(revocation.Open(revocation.Config{Dir: filepath.Join(t.TempDir(), "revocations")}))(t)
	defer list.Close()
	ring, file := identitytest.Keyring(t), ""
	manager := newManager(ring, list)
	tokens := manager.Task(&api.Task{Name: "t", Identity: &api.WorkloadIdentity{File: true}})
	must.Get(tokens.Start(workload.Host{Dir: t.TempDir(), WriteFile: func(_ string, data []byte) error {
		file = string(data)
		return nil
	}}))(t)
	defer tokens.Stop()
	verifier := must.Get(identity.NewVerifier(identity.VerifierConfig{Local: ring}))(t)
	claims := func() *identity.Claims {
		t.Helper()
		verified := must.Get(verifier.Verify(file, time.Now()))(t)
		return &verified.Claims
	}
	revoke := func(what string, r revocation.Rule, want bool) {
		t.Helper()
		before := file
		must.Get(list.Add(r))(t)
		manager.Renew(t.Context())
		if replaced := file != before; replaced != want {
			t.Errorf("%s: replaced %t, want %t", what, replaced, want)
		}
		if list.Revoked(claims()) {
			t.Errorf("%s: the file holds a revoked token", what)
		}
	}
	revoke("another token", revocation.Rule{TokenID: "another"}, false)
	revoke("its token", revocation.Rule{TokenID: claims().ID}, true)
	revoke("another task", revocation.Rule{Task: "u", Before: time.Now().Unix() + 1}, false)
	revoke("its task", revocation.Rule{Task: "t", Before: time.Now().Unix() + 1}, true)
	revoke("its allocation", revocation.Rule{AllocationID: "alloc", Before: time.Now().Unix() + 1}, true)
}

// TestUnreadableRevocationsReplaceNothing: while nobody can tell what is revoked, every token is refused, new ones too:
// the file is left alone, and its task in peace.
func TestUnreadableRevocationsReplaceNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "revocations")
	list := must.Get(revocation.Open(revocation.Config{Dir: dir}))(t)
	defer list.Close()
	written := 0
	manager := newManager(identitytest.Keyring(t), list)
	tokens := manager.Task(&api.Task{Name: "t", Identity: &api.WorkloadIdentity{File: true}})
	must.Get(tokens.Start(workload.Host{Dir: t.TempDir(), WriteFile: func(string, []byte) error {
		written++
		return nil
	}}))(t)
	defer tokens.Stop()
	other := must.Get(revocation.Open(revocation.Config{Dir: dir}))(t)
	defer other.Close()
	must.Get(other.Add(revocation.Rule{TokenID: "another"}))(t)
	must.OK(t, privatefile.Write(filepath.Join(dir, "revocations.json"), []byte("{")))
	manager.Renew(t.Context())
	if !list.Revoked(&identity.Claims{AllocationID: "alloc", Task: "t", IssuedAt: time.Now().Unix()}) {
		t.Fatal("the list is not damaged")
	}
	if written != 1 {
		t.Errorf("the token was written %d times, want once", written)
	}
}
