package auth_test

import (
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"taskapi/auth"
	"taskapi/identity"
)

// running is an allocation that runs.
type running struct{ id string }

func (r running) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	if id != r.id {
		return nil, 0
	}
	return &auth.Allocation{Region: "global", Namespace: "default", JobID: "shop", TaskGroup: "web",
		Life: "first"}, auth.Live
}

// A request on a task's socket is let in with the task's own token, for what the task may do.
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
	authenticator, err := auth.NewAuthenticator(auth.Config{
		Verifier:    verifier,
		Allocations: running{"5fc98185-17ff-26bc-a802-0c74fa471c99"},
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	token, err := ring.Sign(identity.Claims{
		Subject:      identity.Subject("global", "default", "shop", "web", "server", identity.DefaultName),
		Audience:     []string{identity.DefaultAudience},
		ExpiresAt:    time.Now().Add(time.Hour).Unix(),
		Namespace:    "default",
		JobID:        "shop",
		AllocationID: "5fc98185-17ff-26bc-a802-0c74fa471c99",
		Task:         "server",
		Life:         "first",
	})
	if err != nil {
		log.Fatal(err)
	}
	request, err := http.NewRequest(http.MethodGet, "http://socket/v1/allocations", nil)
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("X-Nomad-Token", token)
	peer := auth.Peer{UID: 1000, GID: 1000, PID: 4242}

	own := auth.Owner{AllocationID: "5fc98185-17ff-26bc-a802-0c74fa471c99", Task: "server", UID: 1000}
	principal, denial := authenticator.Authenticate(request, own, peer)
	fmt.Println(principal.Claims.Task, denial)
	fmt.Println(principal.Capabilities)

	others := auth.Owner{AllocationID: own.AllocationID, Task: "database", UID: 1000}
	principal, denial = authenticator.Authenticate(request, others, peer)
	fmt.Println(principal, denial.Reason)
	// Output:
	// server <nil>
	// authenticated, read-job, read-logs, read-fs, alloc-lifecycle, variables-read, agent:read
	// <nil> wrong_socket
}
