package handlers_test

import (
	"net/http"
	"strings"
	"testing"

	"taskapi/handlers/internal/route"
)

// nomadPaths are those that Nomad's agent takes, as its public API documentation has them, one for each of its handlers
// and their suffixes.
const nomadPaths = `
/v1/jobs /v1/jobs/parse /v1/jobs/statuses /v1/job/demo /v1/job/demo/evaluate /v1/job/demo/allocations
/v1/job/demo/evaluations
/v1/job/demo/periodic/force /v1/job/demo/plan /v1/job/demo/summary /v1/job/demo/dispatch /v1/job/demo/dispatch/payload
/v1/job/demo/versions
/v1/job/demo/revert /v1/job/demo/deployments /v1/job/demo/deployment /v1/job/demo/stable /v1/job/demo/scale
/v1/job/demo/services
/v1/job/demo/submission /v1/job/demo/actions /v1/job/demo/action /v1/job/demo/versions/x/tag
/v1/nodes /v1/node/NODE /v1/node/NODE/evaluate /v1/node/NODE/allocations /v1/node/NODE/drain /v1/node/NODE/eligibility
/v1/node/NODE/purge
/v1/node/pools /v1/node/pool/x /v1/node/pool/x/nodes /v1/node/pool/x/jobs
/v1/allocations /v1/allocation/ALLOC /v1/allocation/ALLOC/stop /v1/allocation/ALLOC/services /v1/allocation/ALLOC/checks
/v1/evaluations /v1/evaluations/count /v1/evaluation/EVAL /v1/evaluation/EVAL/allocations /v1/deployments
/v1/deployment/fail/x /v1/deployment/pause/x /v1/deployment/promote/x /v1/deployment/allocation-health/x
/v1/deployment/unblock/x
/v1/volumes /v1/volumes/external /v1/volumes/snapshot /v1/volume/csi/x /v1/volume/csi/x/detach /v1/volume/csi/x/create
/v1/plugins
/v1/plugin/csi/x /v1/volume/host/x /v1/volume/host/create /v1/volumes/claims /v1/volumes/claim/x
/v1/acl/policies /v1/acl/policy/x /v1/acl/policy/self /v1/acl/token/onetime /v1/acl/token/onetime/exchange
/v1/acl/bootstrap /v1/acl/tokens
/v1/acl/token /v1/acl/token/x /v1/acl/token/self /v1/acl/roles /v1/acl/role /v1/acl/role/x /v1/acl/role/name/x
/v1/acl/auth-methods
/v1/acl/auth-method /v1/acl/auth-method/x /v1/acl/binding-rules /v1/acl/binding-rule /v1/acl/binding-rule/x
/v1/acl/oidc/auth-url
/v1/acl/oidc/complete-auth /v1/acl/login /v1/acl/identity/client-introduction-token
/v1/client/fs/ls/ALLOC /v1/client/fs/stat/ALLOC /v1/client/fs/readat/ALLOC /v1/client/fs/cat/ALLOC
/v1/client/fs/stream/ALLOC
/v1/client/fs/logs/ALLOC /v1/client/gc /v1/client/stats /v1/client/allocation/ALLOC/stats
/v1/client/allocation/ALLOC/exec
/v1/client/allocation/ALLOC/restart /v1/client/allocation/ALLOC/gc /v1/client/allocation/ALLOC/signal
/v1/client/allocation/ALLOC/checks
/v1/client/allocation/ALLOC/pause /v1/client/metadata /v1/client/identity /v1/client/identity/renew
/v1/agent/self /v1/agent/join /v1/agent/members /v1/agent/force-leave /v1/agent/servers /v1/agent/schedulers
/v1/agent/schedulers/config
/v1/agent/keyring/list /v1/agent/keyring/install /v1/agent/keyring/use /v1/agent/keyring/remove /v1/agent/health
/v1/agent/host
/v1/agent/reload /v1/agent/monitor /v1/agent/monitor/export /v1/agent/pprof/heap /v1/metrics /v1/services
/v1/service/x /v1/service/x/y
/v1/validate/job /v1/regions /v1/scaling/policies /v1/scaling/policy/x /v1/status/leader /v1/status/peers /v1/search
/v1/search/fuzzy
/v1/operator/license /v1/operator/raft/configuration /v1/operator/raft/peer /v1/operator/raft/transfer-leadership
/v1/operator/keyring/keys
/v1/operator/keyring/rotate /v1/operator/keyring/key/x /v1/operator/autopilot/configuration
/v1/operator/autopilot/health
/v1/operator/snapshot /v1/operator/upgrade-check/vault-workload-identity /v1/operator/utilization
/v1/operator/scheduler/configuration
/v1/system/gc /v1/system/reconcile/summaries /v1/event/stream /v1/namespaces /v1/namespace /v1/namespace/default
/v1/vars /v1/var/x /v1/var/x/y
/.well-known/jwks.json /.well-known/openid-configuration /ui/ /ui/jobs
`

// TestNomadPaths: each of Nomad's paths is answered, or is 501 with words; a 404 would say that there is none of what
// it is about.
func TestNomadPaths(t *testing.T) {
	s := newServer(t, quietAlloc(t), everyRoute)
	for pattern := range strings.FieldsSeq(nomadPaths) {
		path := strings.NewReplacer("NODE", anyNode, "ALLOC", allocID, "EVAL", anyEval).Replace(pattern)
		answered := false
		for _, method := range []string{http.MethodPatch, http.MethodGet, http.MethodPut, http.MethodDelete} {
			entry, _ := routeOf(method, path)
			switch {
			case entry == nil:
				if got := s.once(t, method, head(method, path, operator, "")); got.Status == http.StatusNotFound {
					t.Errorf("%s %s = 404 %q", method, path, got.Body)
				}
			case entry.Answer == route.Absent:
				answered = true
				got := s.once(t, method, head(method, path, goodToken, anyBody))
				if got.Status != http.StatusNotImplemented || got.Body != entry.Doc || len(got.Body) < 20 {
					t.Errorf("%s %s = %d %q, want 501 and words", method, path, got.Status, got.Body)
				}
			default:
				answered = true // TestEveryRoute tries it
			}
		}
		if !answered {
			t.Errorf("no method is answered on %s", path)
		}
	}
}

// TestAbsentIsBehindTheDoor: what is absent tells nobody without a token, and leaves no record, since nothing happens.
func TestAbsentIsBehindTheDoor(t *testing.T) {
	s := newServer(t, newAlloc(t))
	for token, want := range map[string]int{"": 401, "garbage": 403, poorToken: 501, operator: 501} {
		if got := s.do(t, http.MethodDelete, "/v1/acl/token/x", token, ""); got.Status != want {
			t.Errorf("with token %q: %d %q, want %d", token, got.Status, got.Body, want)
		}
	}
	s.stop()
	if got := s.audited(); len(got) != 0 {
		t.Errorf("recorded %+v", got)
	}
}
