package node

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/route"
)

// tokenSelf answers GET /v1/acl/token/self: the operator's token as Nomad describes one, without the secret.
func tokenSelf(_ context.Context, r *route.Request) (route.Answer, error) {
	claims := &r.Principal.Claims
	expires := time.Unix(claims.ExpiresAt, 0).UTC()
	result, err := route.Respond(&api.ACLToken{
		AccessorID:     claims.ID,
		Name:           "operator",
		Type:           "management",
		Global:         true,
		CreateTime:     time.Unix(claims.IssuedAt, 0).UTC(),
		ExpirationTime: &expires,
	})
	result.Index, result.Shared = r.Index(), true
	return result, err
}

// whoami answers GET /v1/acl/whoami: the claims of the caller's own token.
func whoami(_ context.Context, r *route.Request) (route.Answer, error) {
	return route.Respond(r.Principal.Claims.ByName())
}

// jwks answers GET /.well-known/jwks.json: the public keys that verify identities.
func (h *handlers) jwks(_ context.Context, r *route.Request) (route.Answer, error) {
	keys, err := document("key set", h.JWKS)
	keys.Index, keys.Shared = r.Index(), true
	return keys, err
}

// openIDConfiguration answers GET /.well-known/openid-configuration.
func (h *handlers) openIDConfiguration(context.Context, *route.Request) (route.Answer, error) {
	return document("openid configuration", h.OpenIDConfiguration)
}

func document(name string, source func() ([]byte, error)) (route.Answer, error) {
	content, err := source()
	if err != nil {
		return route.Answer{}, fmt.Errorf("make the %s: %w", name, err)
	}
	return route.Answer{Body: route.NewBody(content, route.JSONType)}, nil
}
