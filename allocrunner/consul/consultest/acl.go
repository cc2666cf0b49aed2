package consultest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/google/uuid"
	capi "github.com/hashicorp/consul/api"
)

// Management is a token with every right.
const Management = "management"

// Token turns ACLs on, which then refuse what no rule allows, and returns a new token with the rule service "NAME" { policy = "write" } for each
// name.
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

// knownLocked refuses a token that is none.
func (a *Agent) knownLocked(token string) error {
	if _, ok := a.acl[token]; ok || a.acl == nil || token == "" {
		return nil
	}
	return failure{http.StatusForbidden, "ACL not found"}
}

// mayLocked refuses what a token has no rule for: anything about a service, or about something that is no service's, with an empty name.
func (a *Agent) mayLocked(token, service string) error {
	switch {
	case a.acl == nil || token == Management || service != "" && slices.Contains(a.acl[token], service):
		return nil
	case token == "":
		return failure{http.StatusForbidden, fmt.Sprintf("Permission denied: anonymous token lacks permission 'service:write' on %q", service)}
	}
	return failure{http.StatusForbidden, fmt.Sprintf("Permission denied: token with AccessorID '…' lacks permission 'service:write' on %q", service)}
}

// publishLocked puts what a check has found into the catalog, as far as the token of its registration allows that: it is the check's for good.
func (a *Agent) publishLocked(c *made) {
	if a.mayLocked(c.token, c.ServiceName) == nil {
		c.published = c.Status
	}
}

// listCatalog returns the checks of services with a name as all others see them.
func (a *Agent) listCatalog(name string, r *http.Request) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := capi.HealthChecks{}
	if a.mayLocked(tokenOf(r), name) != nil {
		return list, nil
	}
	for _, id := range slices.Sorted(maps.Keys(a.checks)) {
		if c := a.checks[id]; c.ServiceName == name && c.published != "" {
			list = append(list, &capi.HealthCheck{Node: c.Node, CheckID: id, Name: c.Name, ServiceID: c.ServiceID, ServiceName: name, Status: c.published})
		}
	}
	return list, nil
}
