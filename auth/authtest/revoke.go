package authtest

import (
	"taskapi/identity"
	"taskapi/identity/revocation"
)

// Revoke revokes one token, by its jti, from the next request on. When it returns, a token file that had the token has
// another one.
func (s *Server) Revoke(token string) {
	s.tb.Helper()
	read, err := identity.Check(token)
	s.check(err, "revoke: ")
	s.revoke(revocation.Rule{TokenID: read.Claims.ID})
}

// RevokeAll revokes every token of the task that was issued until now, from the next request on. When it returns, the
// task's token files have new tokens.
func (t *Task) RevokeAll() {
	t.server.tb.Helper()
	t.server.revoke(revocation.Rule{AllocationID: t.alloc.id, Task: t.name, Before: t.server.Now().Unix() + 1})
}

func (s *Server) revoke(rule revocation.Rule) {
	s.tb.Helper()
	_, err := s.revoked.Add(rule)
	s.check(err, "revoke: ")
	s.renew()
}
