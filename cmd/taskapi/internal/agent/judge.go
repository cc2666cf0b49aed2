package agent

import (
	"crypto/ed25519"
	"encoding/base64"
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

// Door is what decides about tokens, as far as it is known without the agent: what is missing is left out.
type Door struct {
	Settings     Settings
	Keys         identity.KeySource // of the key ring; nil when it can't be read
	Revocations  auth.Revocations   // nil when none are known
	AllocationID string             // of the allocation below
	Allocation   *auth.Allocation   // nil when nothing is known of it
	Ended        bool               // the allocation has
}

// Lookup returns the allocation.
func (d Door) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	switch {
	case d.Allocation == nil || id != d.AllocationID:
		return nil, auth.Unknown
	case d.Ended:
		return d.Allocation, auth.Terminal
	}
	return d.Allocation, auth.Live
}

var _ auth.Allocations = Door{}

// Judge returns why the door refuses a token on the socket of a task, empty for the operator's, with the words of package identity where it has some;
// auth.NotRefused when it does not. It is the authenticator of a running agent that decides. Keys behind a URL are not fetched.
func (d Door) Judge(token, task string) (why auth.Reason, words error, err error) {
	issuers, err := openIssuers(d.Settings.JWKS, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, nil, err
	}
	config := identity.VerifierConfig{
		Local: d.Keys, Audiences: d.Settings.audience(), MaxTTL: d.Settings.longestTTL(),
	}
	if d.Keys == nil {
		config.Local = new(identity.KeySet)
	}
	for _, i := range issuers {
		config.Foreign = append(config.Foreign, i.Issuer)
	}
	verifier, err := identity.NewVerifier(config)
	if err != nil {
		return 0, nil, err
	}
	a, err := auth.NewAuthenticator(auth.Config{Verifier: verifier, Allocations: d, Revocations: d.Revocations, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 0, nil, err
	}
	_, words = verifier.Verify(token, time.Now())
	r := &http.Request{Method: http.MethodGet, Header: http.Header{"X-Nomad-Token": {token}}, URL: new(url.URL)}
	uid := uint32(os.Geteuid())
	_, denial := a.Authenticate(r, auth.Owner{AllocationID: d.AllocationID, Task: task, UID: uid}, auth.Peer{UID: uid})
	if denial == nil {
		return auth.NotRefused, nil, nil
	}
	return denial.Reason, words, nil
}

// JudgeClaims returns why the claims of a token are refused whose signature can't be checked: for their times and audience, and for what is known of
// the allocation.
func (d Door) JudgeClaims(c *identity.Claims) (why auth.Reason, words error, err error) {
	// A key of its own signs the claims, so that the very same door judges them.
	key, err := d.lend()
	if err != nil {
		return 0, nil, err
	}
	token := badtokens.Good{Key: key.Key, Now: time.Now(), Claims: *c}.Token()
	d.Keys, d.Settings.JWKS = key.set, nil
	if d.Allocation == nil { // what is not known can't be wrong
		region, group := "", ""
		if parts := strings.Split(c.Subject, ":"); len(parts) == 6 {
			region, group = parts[0], parts[3]
		}
		d.AllocationID = c.AllocationID
		d.Allocation = &auth.Allocation{Region: region, Namespace: c.Namespace, JobID: c.JobID, TaskGroup: group, Life: c.Life}
	}
	return d.Judge(token, c.Task)
}

// lent is a key that exists for one judgement.
type lent struct {
	badtokens.Key
	set *identity.KeySet
}

func (Door) lend() (lent, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return lent{}, err
	}
	set, err := identity.ParseJWKS([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"lent","x":"` + base64.RawURLEncoding.EncodeToString(public) + `"}]}`))
	return lent{badtokens.NewKey("lent", private), set}, err
}
