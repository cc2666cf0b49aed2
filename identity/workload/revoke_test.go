package workload_test

import (
	"log/slog"
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
	return workload.New(workload.Config{
		Keyring:      ring,
		Revocations:  list,
		Logger:       slog.New(slog.DiscardHandler),
		Audiences:    []string{"nomadproject.io"},
		TTL:          time.Hour,
		Region:       "global",
		Namespace:    "default",
		JobID:        "job",
		TaskGroup:    "group",
		AllocationID: "alloc",
		Life:         "life",
	})
}

// TestRevokedTokensAreReplaced: a task whose token is revoked, by its ID or with all that was issued until now, finds a
// good one in its file, in the same second, and one that is revoked for another task stays.
func TestRevokedTokensAreReplaced(t *testing.T) {
	list, err := revocation.Open(revocation.Config{Dir: filepath.Join(t.TempDir(), "revocations")})
	must.OK(t, err)
	defer list.Close()
	ring, file := identitytest.Keyring(t), ""
	manager := newManager(ring, list)
	tokens := manager.Task(&api.Task{Name: "t", Identity: &api.WorkloadIdentity{File: true}})
	_, err = tokens.Start(workload.Host{Dir: t.TempDir(), WriteFile: func(_ string, data []byte) error {
		file = string(data)
		return nil
	}})
	must.OK(t, err)
	defer tokens.Stop()
	verifier, err := identity.NewVerifier(identity.VerifierConfig{Local: ring})
	must.OK(t, err)
	claims := func() *identity.Claims {
		t.Helper()
		verified, err := verifier.Verify(file, time.Now())
		must.OK(t, err)
		return &verified.Claims
	}
	revoke := func(what string, r revocation.Rule, want bool) {
		t.Helper()
		before := file
		if _, err := list.Add(r); err != nil {
			t.Fatal(err)
		}
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
	list, err := revocation.Open(revocation.Config{Dir: dir})
	must.OK(t, err)
	defer list.Close()
	written := 0
	manager := newManager(identitytest.Keyring(t), list)
	tokens := manager.Task(&api.Task{Name: "t", Identity: &api.WorkloadIdentity{File: true}})
	if _, err := tokens.Start(workload.Host{Dir: t.TempDir(), WriteFile: func(string, []byte) error {
		written++
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	defer tokens.Stop()
	other, err := revocation.Open(revocation.Config{Dir: dir})
	must.OK(t, err)
	defer other.Close()
	if _, err := other.Add(revocation.Rule{TokenID: "another"}); err != nil {
		t.Fatal(err)
	}
	must.OK(t, privatefile.Write(filepath.Join(dir, "revocations.json"), []byte("{")))
	manager.Renew(t.Context())
	if !list.Revoked(&identity.Claims{AllocationID: "alloc", Task: "t", IssuedAt: time.Now().Unix()}) {
		t.Fatal("the list is not damaged")
	}
	if written != 1 {
		t.Errorf("the token was written %d times, want once", written)
	}
}
