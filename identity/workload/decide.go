package workload

import (
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
)

// metadata describes a token: enough to renew it in time and to recognize a good one. It holds no secret.
type metadata struct {
	ID        string    `json:"jti,omitempty"`
	KeyID     string    `json:"kid"`
	Audience  []string  `json:"aud"`
	IssuedAt  time.Time `json:"iat"`
	ExpiresAt time.Time `json:"exp"`

	ExtraClaims map[string]string `json:"extra_claims,omitempty"`
}

// describe returns the metadata of a token, with the times that are in it.
func describe(c *identity.Claims, keyID string) *metadata {
	return &metadata{
		ID: c.ID, KeyID: keyID, Audience: c.Audience,
		IssuedAt: time.Unix(c.IssuedAt, 0), ExpiresAt: time.Unix(c.ExpiresAt, 0), ExtraClaims: c.ExtraClaims,
	}
}

// skew is how far a clock may be set back before a token counts as one from the future, which a verifier refuses.
const skew = time.Second

// half returns when half of the token's life is over.
func (m *metadata) half() time.Time { return m.IssuedAt.Add(m.ExpiresAt.Sub(m.IssuedAt) / 2) }

// current reports whether the token is trusted, not from the future, and has the audience and the extra claims of a new
// one. It does not look at the expiry.
func (m *metadata) current(now time.Time, want identity.Claims, trusted func(*metadata) bool) bool {
	return m != nil && trusted(m) && !now.Before(m.IssuedAt.Add(-skew)) &&
		slices.Equal(m.Audience, want.Audience) && maps.Equal(m.ExtraClaims, want.ExtraClaims)
}

// issued are the tokens of one identity that are in use; nil for none.
type issued struct {
	File *metadata `json:"file,omitempty"` // in the identity's file
	Env  *metadata `json:"env,omitempty"`  // in the environment of the task's process
	// Pending: the file has a token since change_mode has last acted. If the write of a file is saved nowhere, the saved
	// token is due, and its renewal acts.
	Pending bool `json:"pending,omitempty"`

	stale bool // a newer token could not be written to the file
}

// action says what to do about the tokens of one identity.
type action struct {
	issue   bool      // replace the token in the file
	restart bool      // restart the task, for another token in its environment
	refused bool      // a token in the environment is refused, and is not replaced before the task's next start
	next    time.Time // when something is due next; zero for not before the keys change
}

// decide returns what to do about the tokens of an identity. want are the claims of a new token. A token is replaced
// when half of its life is over, when its key has left the ring, when it was revoked, and when its audience or its
// extra claims are not current. A token in an environment is replaced only by a restart, if the job file asks for one.
// Half of its life counts only if the identity has a ttl or a file.
func decide(
	now time.Time, wi *api.WorkloadIdentity, want identity.Claims, out issued, trusted func(*metadata) bool,
) (a action) {
	timed := wi.File || wi.TTL > 0
	due := func(m *metadata) bool {
		if !m.current(now, want, trusted) || timed && !now.Before(m.half()) {
			return true
		}
		if timed {
			a.next = earliest(a.next, m.half())
		}
		return false
	}
	a.issue = wi.File && (due(out.File) || out.stale)
	switch m := out.Env; {
	case m == nil:
	case wi.ChangeMode == "restart":
		a.restart = due(m)
	case wi.Env:
		a.refused = !trusted(m)
	}
	return a
}
