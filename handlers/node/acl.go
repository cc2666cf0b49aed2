package node

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/route"
	"taskapi/identity"
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

// wireClaims are the claims under their names in the token.
type wireClaims struct {
	Audience     any           `json:"aud"` // a string when there is one, as in the token
	ExpiresAt    int64         `json:"exp"`
	IssuedAt     int64         `json:"iat"`
	Issuer       string        `json:"iss,omitempty"`
	ID           string        `json:"jti"`
	NotBefore    int64         `json:"nbf"`
	Subject      string        `json:"sub"`
	Namespace    string        `json:"nomad_namespace"`
	JobID        string        `json:"nomad_job_id"`
	AllocationID string        `json:"nomad_allocation_id"`
	Task         string        `json:"nomad_task,omitempty"`
	Role         identity.Role `json:"taskapi_role,omitempty"`
	Life         string        `json:"taskapi_allocation_life,omitempty"`
}

// whoami answers GET /v1/acl/whoami: the claims of the caller's own token.
func whoami(_ context.Context, r *route.Request) (route.Answer, error) {
	claims := &r.Principal.Claims
	var audience any = claims.Audience
	if len(claims.Audience) == 1 {
		audience = claims.Audience[0]
	}
	return route.Respond(wireClaims{
		Audience:     audience,
		ExpiresAt:    claims.ExpiresAt,
		IssuedAt:     claims.IssuedAt,
		Issuer:       claims.Issuer,
		ID:           claims.ID,
		NotBefore:    claims.NotBefore,
		Subject:      claims.Subject,
		Namespace:    claims.Namespace,
		JobID:        claims.JobID,
		AllocationID: claims.AllocationID,
		Task:         claims.Task,
		Role:         claims.Role,
		Life:         claims.Life,
	})
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
