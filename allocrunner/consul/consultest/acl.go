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
	switch {
	case a.acl == nil || token == Management || service != "" && slices.Contains(a.acl[token], service):
		return nil
	case token == "":
		return failure{http.StatusForbidden,
			fmt.Sprintf("Permission denied: anonymous token lacks permission 'service:write' on %q", service)}
	}
	return failure{http.StatusForbidden,
		fmt.Sprintf("Permission denied: token with AccessorID '…' lacks permission 'service:write' on %q", service)}
}

// publishLocked copies a check's status into the catalog if the token with which the check was registered allows it.
func (a *Agent) publishLocked(c *made) {
	if a.mayLocked(c.token, c.ServiceName) == nil {
		c.published = c.Status
	}
}

// listCatalog returns the checks of the services with a name, as the catalog has them.
func (a *Agent) listCatalog(name string, r *http.Request) (any, error) {
	list := capi.HealthChecks{}
	if a.mayLocked(tokenOf(r), name) != nil {
		return list, nil //nolint:nilerr // a caller who may not read a service sees none of its checks
	}
	for _, id := range slices.Sorted(maps.Keys(a.checks)) {
		if c := a.checks[id]; c.ServiceName == name && c.published != "" {
			list = append(list, &capi.HealthCheck{Node: c.Node, CheckID: id, Name: c.Name, ServiceID: c.ServiceID,
				ServiceName: name, Status: c.published})
		}
	}
	return list, nil
}
