package workload

import (
	"reflect"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
	"taskapi/internal/privatefile"
)

const (
	// operatorTTL is the longest life of the operator's token, so that a copied one is soon of no use.
	operatorTTL = time.Hour
	// maxTokenFile is larger than any token that a server takes.
	maxTokenFile = 64 << 10
)

// Operator keeps a good token of the operator in a file until Tokens.Stop, and returns when the file is written. The
// token of an earlier process stays if a new one would claim the same, and until half of its life is over. The file
// belongs to this process's user alone.
func (m *Manager) Operator(path string) (*Tokens, error) {
	verifier, err := identity.NewVerifier(identity.VerifierConfig{Local: m.config.Keyring, Audiences: m.config.Audiences})
	if err != nil {
		return nil, err
	}
	s := &state{WorkloadIdentity: &api.WorkloadIdentity{
		Name:     string(identity.RoleOperator),
		Audience: m.config.Audiences,
		File:     true,
		Filepath: path,
		TTL:      min(m.config.TTL, operatorTTL),
	}}
	t := &Tokens{manager: m, logger: m.config.Logger, identities: []*state{s}}
	t.inspect = func(s *state, now time.Time) *metadata { return inspect(path, verifier, t.claims(s, now), now) }
	// A token that a crash of the machine has lost is issued again by the next taskapi.
	_, err = t.begin(Host{WriteFile: privatefile.WriteVolatile}, func(s *state, now time.Time) (string, error) {
		if s.out.File = t.inspect(s, now); !decide(now, s.WorkloadIdentity, t.claims(s, now), s.out, t.trusted).issue {
			return "", nil
		}
		return t.issueLocked(s, now)
	})
	return t, err
}

// inspect returns the metadata of the operator's token in a file. It returns nil when the token must be replaced: it is
// not good, it claims something else than a new one, or it lives longer than a new one.
func inspect(path string, verifier *identity.Verifier, want identity.Claims, now time.Time) *metadata {
	token, err := ReadOperatorToken(path)
	if err != nil {
		return nil
	}
	verified, err := verifier.Verify(token, now)
	if err != nil || verified.Claims.ExpiresAt > want.ExpiresAt {
		return nil
	}
	have := &verified.Claims
	want.ID, want.IssuedAt, want.NotBefore, want.ExpiresAt = have.ID, have.IssuedAt, have.NotBefore, have.ExpiresAt
	if !reflect.DeepEqual(*have, want) {
		return nil
	}
	return describe(have, verified.KeyID)
}

// ReadOperatorToken reads the operator's token from its file, which must be this user's alone.
func ReadOperatorToken(path string) (string, error) {
	token, _, err := privatefile.Read(path, maxTokenFile)
	return string(token), err
}
