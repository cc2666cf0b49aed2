// Command oidc-verifier is a service that knows its callers by their workload identities: it verifies tokens with an
// OIDC library that is pointed at the issuer's URL, and knows nothing of taskapi. It greets a caller with the sub of
// its token.
//
//	oidc-verifier -issuer http://127.0.0.1:9180 -audience greeter
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

func main() {
	issuer := flag.String("issuer", "http://127.0.0.1:9180", "URL of the issuer")
	audience := flag.String("audience", "greeter", "audience that tokens must name")
	listen := flag.String("listen", "127.0.0.1:8080", "address to listen on")
	flag.Parse()
	verify, err := newVerifier(context.Background(), *issuer, config(*audience))
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: *listen, Handler: greet(verify), ReadTimeout: 5 * time.Second,
		WriteTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// config says what a token must be: for us, signed with the one algorithm that the issuer has. The library's default is
// RS256.
func config(audience string) *oidc.Config {
	return &oidc.Config{ClientID: audience, SupportedSigningAlgs: []string{oidc.EdDSA}}
}

// newVerifier finds the issuer's keys, and returns a function that verifies tokens with them and returns their sub.
func newVerifier(ctx context.Context, issuer string,
	config *oidc.Config) (func(ctx context.Context, token string) (string, error), error) {
	provider, err := oidc.NewProvider(ctx, issuer)
	if err != nil {
		return nil, err
	}
	verifier := provider.Verifier(config)
	return func(ctx context.Context, token string) (string, error) {
		verified, err := verifier.Verify(ctx, token)
		if err != nil {
			return "", err
		}
		return verified.Subject, nil
	}, nil
}

// greet answers who has a good token.
func greet(verify func(ctx context.Context, token string) (string, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		subject, err := verify(r.Context(), token)
		if err != nil {
			http.Error(w, "not you", http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, "hello, %q\n", subject)
	})
}
