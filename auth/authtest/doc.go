// Package authtest has a server that answers as taskapi does, for tests of clients of Nomad's API with a workload
// identity, and a table of bad tokens for tests of programs that verify such identities. It is to authentication what
// net/http/httptest is to HTTP:
//
//	srv := authtest.NewServer(t)                      // one job with one task, "web"
//	client := srv.Client(srv.Token())                 // Nomad's SDK, over the task's Unix socket
//	srv.Advance(2 * time.Hour)                        // the token has expired
//	_, _, err := client.Allocations().List(nil)       // 403
//	srv.Expect("GET /v1/allocations 403 expired")     // and why
//
// Authentication and the API are those of production: auth.Authenticator and handlers.API behind a real socket, with a
// key ring on disk and the manager that renews token files. Variables, their locks, services and the event stream are
// those of production, too, in a store in memory. Only the tasks are missing: an allocation is a record, and no process
// runs, so logs, files, exec and stats are 404. A server starts in milliseconds, shares nothing with others, and is
// closed with its test. Tests may run in parallel.
//
// It builds on Linux and macOS. Names and signatures here, the reasons in package auth and the kinds in package
// badtokens stay as they are within a major version. The texts of failures may change.
package authtest
