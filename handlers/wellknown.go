package handlers

import (
	"context"
	"fmt"

	"taskapi/handlers/apierror"
)

// jwks answers GET /.well-known/jwks.json: the public keys that verify identities.
func (a *API) jwks(_ context.Context, r *request) (answer, error) {
	keys, err := document("key set", a.config.JWKS)
	keys.index, keys.shared = r.index(), true
	return keys, err
}

// openIDConfiguration answers GET /.well-known/openid-configuration.
func (a *API) openIDConfiguration(context.Context, *request) (answer, error) {
	return document("openid configuration", a.config.OpenIDConfiguration)
}

func document(name string, source func() ([]byte, error)) (answer, error) {
	if source == nil {
		return answer{}, apierror.New(apierror.NoRoute)
	}
	content, err := source()
	if err != nil {
		return answer{}, fmt.Errorf("make the %s: %w", name, err)
	}
	return answer{body: newBody(content, jsonType)}, nil
}
