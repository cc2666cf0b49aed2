package identity_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"taskapi/identity"
)

// A token is signed, verified, and refused as soon as its key has left the ring.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ring, err := identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(dir, "keyring")})
	if err != nil {
		log.Fatal(err)
	}
	verifier, err := identity.NewVerifier(identity.VerifierConfig{Local: ring})
	if err != nil {
		log.Fatal(err)
	}
	token, err := ring.Sign(identity.Claims{
		Subject:   identity.Subject("global", "default", "shop", "web", "server", identity.DefaultName),
		Audience:  []string{identity.DefaultAudience},
		ExpiresAt: time.Now().Add(time.Hour).Unix(),
		Task:      "server",
	})
	if err != nil {
		log.Fatal(err)
	}
	verified, err := verifier.Verify(token, time.Now())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(verified.Claims.Subject, verifier.Trusts(verified))

	before := ring.Active().ID
	if _, err := ring.Rotate(); err != nil {
		log.Fatal(err)
	}
	if err := ring.Remove(before); err != nil {
		log.Fatal(err)
	}
	fmt.Println(verifier.Trusts(verified))
	_, err = verifier.Verify(token, time.Now())
	fmt.Println(identity.ReasonOf(err))
	// Output:
	// global:default:shop:web:server:default true
	// false
	// unknown_key true
}

// Another issuer's keys, in a JWK set. What can't be used is named; what is wrong refuses the whole set.
func ExampleParseJWKS() {
	set, err := identity.ParseJWKS([]byte(`{"keys": [
		{"kty": "OKP", "crv": "Ed25519", "kid": "2026-01", "use": "sig", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
		{"kty": "RSA", "kid": "old", "alg": "PS256", "n": "AQAB", "e": "AQAB"}
	]}`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(set.IDs(), set.Skipped())

	_, err = identity.ParseJWKS([]byte(`{"keys": [
		{"kty": "OKP", "crv": "Ed25519", "kid": "x", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "d": "AA"}
	]}`))
	fmt.Println(err)
	// Output:
	// [2026-01] [{old RSA PS256}]
	// key set refused: key 1, kid "x": holds private key material: publish public keys alone, and replace this key, which is now known
}
