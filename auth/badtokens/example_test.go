package badtokens_test

import (
	"crypto/ed25519"
	"fmt"
	"time"

	"taskapi/auth/badtokens"
	"taskapi/identity"
)

// A bad token is made of what a good one claims, and of its key.
func Example() {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	good := badtokens.Good{Key: badtokens.NewKey("key-1", key), Now: now, Claims: identity.Claims{
		Subject:   "global:default:shop:group:web:default",
		Audience:  []string{"my-service"},
		ExpiresAt: now.Add(time.Hour).Unix(),
	}}
	for _, name := range []string{"alg-none", "expired", "aud-prefix"} {
		kind, _ := badtokens.Find(name)
		token, err := kind.Token(good)
		fmt.Println(kind.Class, "|", kind.Wrong, "|", kind.Status(), kind.Reason, len(token) > 0, err)
	}
	// Output:
	// algorithm | alg none, and no signature (CVE-2015-9235) | 403 algorithm true <nil>
	// time | expired an hour ago | 403 expired true <nil>
	// audience | the beginning of the right aud | 403 audience true <nil>
}
