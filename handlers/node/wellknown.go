package node

import (
	"context"
	"fmt"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
)

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
	if source == nil {
		return route.Answer{}, apierror.New(apierror.NoRoute)
	}
	content, err := source()
	if err != nil {
		return route.Answer{}, fmt.Errorf("make the %s: %w", name, err)
	}
	return route.Answer{Body: route.NewBody(content, route.JSONType)}, nil
}
