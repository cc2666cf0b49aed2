package node

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// operatorToken returns the token that the operator calls with as Nomad describes one, without the secret.
func operatorToken(r *route.Request) *api.ACLToken {
	claims := &r.Principal.Claims
	expires := time.Unix(claims.ExpiresAt, 0).UTC()
	return &api.ACLToken{
		AccessorID:     claims.ID,
		Name:           "operator",
		Type:           "management",
		Global:         true,
		CreateTime:     time.Unix(claims.IssuedAt, 0).UTC(),
		ExpirationTime: &expires,
	}
}

// tokenSelf answers GET /v1/acl/token/self.
func tokenSelf(_ context.Context, r *route.Request) (route.Answer, error) {
	return route.Shared(wire.ACLTokenOf(operatorToken(r)), r.Index())
}

// tokenByID answers GET /v1/acl/token/:accessor. Errors: NoToken.
func tokenByID(ctx context.Context, r *route.Request) (route.Answer, error) {
	if r.Param("name") != r.Principal.Claims.ID {
		return route.Answer{}, apierror.New(apierror.NoToken)
	}
	return tokenSelf(ctx, r)
}

// tokenListing says how tokens are listed.
func tokenListing(*route.Request) list.Listing[*api.ACLToken] {
	return list.Listing[*api.ACLToken]{
		Order: list.ByID,
		ID:    func(t *api.ACLToken) string { return t.AccessorID },
		Stub:  func(t *api.ACLToken) any { return wire.ACLTokenStubOf(t) },
	}
}

func tokens(r *route.Request, _ *api.Allocation) ([]*api.ACLToken, error) {
	return []*api.ACLToken{operatorToken(r)}, nil
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
