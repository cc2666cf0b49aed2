package consultest

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"
)

// Management is a token with every right.
const Management = "management"

// Token turns ACLs on, which refuse whatever no rule allows. It returns a new token with the rule service "NAME" {
// policy = "write" } for each name.
func (a *Agent) Token(services ...string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.acl == nil {
		a.acl = map[string][]string{Management: nil}
	}
	token := uuid.NewString()
	a.acl[token] = services
	return token
}

// Revoke ends a token.
func (a *Agent) Revoke(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.acl, token)
}

func tokenOf(r *http.Request) string { return r.Header.Get("X-Consul-Token") }

// mayLocked refuses a token that has no rule for a service. An empty name stands for something that belongs to no
// service.
func (a *Agent) mayLocked(token, service string) error {
	if a.acl == nil || token == Management || service != "" && slices.Contains(a.acl[token], service) {
		return nil
	}
	return failure{http.StatusForbidden,
		fmt.Sprintf("Permission denied: token with AccessorID '…' lacks permission 'service:write' on %q", service)}
}
