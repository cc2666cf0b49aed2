package authtest_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"taskapi/auth"
	"taskapi/auth/authtest"
)

// printer stands for a test: it prints what fails.
type printer struct{ cleanups []func() }

func (*printer) Helper()                           {}
func (*printer) Logf(format string, args ...any)   { fmt.Printf(format+"\n", args...) }
func (*printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (*printer) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (p *printer) Cleanup(f func())                { p.cleanups = append(p.cleanups, f) }
func (p *printer) end() {
	for _, f := range slices.Backward(p.cleanups) {
		f()
	}
}

// A token is good until it expires, its key is removed, or its allocation ends. In a test, t is its *testing.T.
func Example() {
	t := new(printer)
	defer t.end()

	srv := authtest.NewServer(t)
	client := srv.Client(srv.Token())
	allocs, _, err := client.Allocations().List(nil)
	fmt.Println(len(allocs), err)

	srv.Advance(2 * time.Hour)
	_, _, err = client.Allocations().List(nil)
	fmt.Println(err)
	fmt.Println(srv.Refusals())
	// Output:
	// 1 <nil>
	// Unexpected response code: 403 (Forbidden)
	// [expired]
}

// Every kind of bad token is refused for its own reason.
func ExampleServer_Bad() {
	t := new(printer)
	defer t.end()

	srv := authtest.NewServer(t)
	for _, kind := range []string{"alg-none", "tampered", "wrong-audience", "other-alloc"} {
		_, _, err := srv.Client(srv.Bad(kind)).Allocations().List(nil)
		fmt.Println(err != nil)
	}
	fmt.Println(strings.Join(srv.Refusals(), ", "))
	// Output:
	// true
	// true
	// true
	// true
	// algorithm, signature, audience, unknown_allocation
}

// Requests fail as the test says, and then they don't.
func ExampleServer_FailNext() {
	t := new(printer)
	defer t.end()

	srv := authtest.NewServer(t)
	srv.FailNext(1, authtest.TooManyRequests(2*time.Second))
	client := srv.Client(srv.Token())
	for range 2 {
		_, _, err := client.Allocations().List(nil)
		fmt.Println(err)
	}
	srv.Expect("GET /v1/allocations 429 fault", "GET /v1/allocations 200")
	// Output:
	// Unexpected response code: 429 (Too Many Requests)
	// <nil>
}

// What a task may do changes with the next request.
func ExampleServer_Deny() {
	t := new(printer)
	defer t.end()

	srv := authtest.NewServer(t, authtest.Job{ID: "shop", Namespace: "prod", Tasks: []string{"web"}})
	client := srv.Client(srv.Token())
	srv.Deny(auth.ReadJob)
	_, _, err := client.Allocations().List(nil)
	fmt.Println(err)
	// Output:
	// Unexpected response code: 403 (Permission denied)
}

// A task reads its job's variables, and finds the services of other jobs.
func ExampleServer_PutVariable() {
	t := new(printer)
	defer t.end()

	srv := authtest.NewServer(t, authtest.Job{ID: "shop", Tasks: []string{"web"}},
		authtest.Job{ID: "db", Tasks: []string{"postgres"}})
	srv.PutVariable("nomad/jobs/shop", map[string]string{"user": "alice"})
	srv.Task("postgres").RegisterService("db", "10.0.0.7", 5432, "primary")

	client := srv.Client(srv.Token())
	config, _, err := client.Variables().Read("nomad/jobs/shop", nil)
	fmt.Println(config.Items["user"], err)
	found, _, err := client.Services().Get("db", nil)
	fmt.Println(found[0].Address, found[0].Port, found[0].Tags, err)
	_, _, err = client.Variables().Read("nomad/jobs/db", nil)
	fmt.Println(err)
	// Output:
	// alice <nil>
	// 10.0.0.7 5432 [primary] <nil>
	// Unexpected response code: 403 (Permission denied)
}

// myService is a service that takes callers by their identities.
type myService struct{ jwksURL string }

func (s myService) authenticate(token string) error {
	if token == "" {
		return errors.New("no token")
	}
	_, err := http.Get(s.jwksURL) //nolint:noctx // an example that is not run
	return err
}

// A program's own verifier is tested against the whole catalogue, in one subtest for each kind.
func ExampleRunVerifier() {
	_ = func(t *testing.T) { // TestAuthenticate
		srv := authtest.NewServer(t, authtest.Audience("my-service"))
		service := myService{jwksURL: srv.JWKSURL()}
		authtest.RunVerifier(t, srv, service.authenticate,
			authtest.Rotation(),
			authtest.Skip("our library does not look at crit", "crit-*"),
		)
	}
}

// A verifier that fetches other issuers' keys is tested with good and bad ones.
func ExampleRunKeySets() {
	_ = func(t *testing.T) { // TestKeySets
		authtest.RunKeySets(t, []string{"RS256", "ES256"}, func(jwksURL, token string) error {
			return myService{jwksURL: jwksURL}.authenticate(token)
		})
	}
}
