package authtest

import (
	"taskapi/identity"
	"taskapi/identity/revocation"
)

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
	if _, err := s.revoked.Add(rule); err != nil {
		s.tb.Fatalf("authtest: revoke: %v", err)
		return
	}
	s.renew()
}
