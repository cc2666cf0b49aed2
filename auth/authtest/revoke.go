package authtest

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/auth"
	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/identity/workload"
)

// revocations is the list of revoked tokens, once there is one.
type revocations struct {
	opening sync.Mutex // held while the list is opened
	list    atomic.Pointer[revocation.List]
}

var (
	_ auth.Revocations     = (*revocations)(nil)
	_ workload.Revocations = (*revocations)(nil)
)

// Revoked reports whether a token with the claims is revoked.
func (r *revocations) Revoked(c *identity.Claims) bool {
	list := r.list.Load()
	return list != nil && list.Revoked(c)
}

// Changed returns nil before the first revocation: what is revoked here is followed by Manager.Renew.
func (r *revocations) Changed() <-chan struct{} {
	if list := r.list.Load(); list != nil {
		return list.Changed()
	}
	return nil
}

// open returns the list, which it makes where there is none.
func (r *revocations) open(dir string, now func() time.Time) (*revocation.List, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	if list := r.list.Load(); list != nil {
		return list, nil
	}
	list, err := revocation.Open(revocation.Config{Dir: dir, Now: now})
	if err == nil {
		r.list.Store(list)
	}
	return list, err
}

func (r *revocations) close() error {
	if list := r.list.Load(); list != nil {
		return list.Close()
	}
	return nil
}

// Revoke has one token, by its jti, refused from the next request on, as revoked. A token file that holds it has another one when it returns.
func (s *Server) Revoke(token string) {
	s.tb.Helper()
	read, err := identity.Check(token)
	if err != nil {
		s.tb.Fatalf("authtest: revoke: %v", err)
		return
	}
	s.revoke(revocation.Rule{TokenID: read.Claims.ID})
}

// RevokeAll has every token of the task that was issued until now refused from the next request on, as revoked. The task's token files have new
// ones when it returns.
func (t *Task) RevokeAll() {
	t.server.tb.Helper()
	t.server.revoke(revocation.Rule{AllocationID: t.alloc.id, Task: t.name, Before: t.server.Now().Unix() + 1})
}

func (s *Server) revoke(rule revocation.Rule) {
	s.tb.Helper()
	list, err := s.revoked.open(filepath.Join(s.dir, "revocations"), s.Now)
	if err == nil {
		_, err = list.Add(rule)
	}
	if err != nil {
		s.tb.Fatalf("authtest: revoke: %v", err)
		return
	}
	s.renew()
}
