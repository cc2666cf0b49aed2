package agent

import (
	"cmp"
	"crypto/ed25519"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"taskapi/auth"
	"taskapi/auth/badtokens"
	"taskapi/identity"
)

// OfflineAuthenticator judges tokens as a running agent does. What can't be known without an agent is left out.
type OfflineAuthenticator struct {
	Settings     Settings
	Keys         identity.KeySource // of the key ring; nil when the ring can't be read
	Revocations  auth.Revocations   // nil when the list can't be read
	AllocationID string
	Allocation   *auth.Allocation // nil when the allocation is not known
	Ended        bool             // the allocation has ended
}

// Evaluate returns why the agent refuses a token on the socket of a task, or on the operator's for an empty task. It
// returns auth.NotRefused for a good token. words is the error of package identity, if there is one. The authenticator
// is the one of a running agent, but keys behind a URL are not fetched.
func (o OfflineAuthenticator) Evaluate(token, task string) (why auth.Reason, words error, err error) {
	issuers, err := openIssuers(o.Settings.JWKS, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, nil, err
	}
	verifier, err := o.Settings.newVerifier(cmp.Or[identity.KeySource](o.Keys, new(identity.KeySet)), issuers)
	if err != nil {
		return 0, nil, err
	}
	a, err := auth.NewAuthenticator(auth.Config{
		Verifier: verifier, Revocations: o.Revocations, Logger: slog.New(slog.DiscardHandler),
		Allocations: OnlyAllocation{o.AllocationID, o.Allocation, func() bool { return o.Ended }},
	})
	if err != nil {
		return 0, nil, err
	}
	_, words = verifier.Verify(token, time.Now())
	r := &http.Request{Method: http.MethodGet, Header: http.Header{"X-Nomad-Token": {token}}, URL: new(url.URL)}
	uid := uint32(os.Geteuid())
	_, denial := a.Authenticate(r, auth.Owner{AllocationID: o.AllocationID, Task: task, UID: uid}, auth.Peer{UID: uid})
	if denial == nil {
		return auth.NotRefused, nil, nil
	}
	return denial.Reason, words, nil
}

// EvaluateClaims returns why the agent would refuse claims, whatever their signature: for their times, their audience,
// or the allocation.
func (o OfflineAuthenticator) EvaluateClaims(c *identity.Claims) (why auth.Reason, words error, err error) {
	_, private, err := ed25519.GenerateKey(nil) // it signs the claims, so that Evaluate can judge them
	if err != nil {
		return 0, nil, err
	}
	key := badtokens.NewKey("offline", private)
	set, err := key.KeySet()
	if err != nil {
		return 0, nil, err
	}
	token := badtokens.Good{Key: key, Now: time.Now(), Claims: *c}.Token()
	o.Keys, o.Settings.JWKS = set, nil
	if o.Allocation == nil { // an unknown allocation is no reason to refuse
		region, group := "", ""
		if parts := strings.Split(c.Subject, ":"); len(parts) == 6 {
			region, group = parts[0], parts[3]
		}
		o.AllocationID = c.AllocationID
		o.Allocation = &auth.Allocation{
			Region: region, Namespace: c.Namespace, JobID: c.JobID, TaskGroup: group, Life: c.Life,
		}
	}
	return o.Evaluate(token, c.Task)
}
