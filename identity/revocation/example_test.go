package revocation_test

import (
	"fmt"
	"os"
	"time"

	"taskapi/identity"
	"taskapi/identity/revocation"
)

// A stolen token is refused from now on, and with another rule all that a task was issued before; a new one is good.
func Example() {
	dir, err := os.MkdirTemp("", "revocations")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	now := time.Unix(1_800_000_000, 0)
	list, err := revocation.Open(revocation.Config{Dir: dir, Now: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer list.Close()

	issued := func(id string, at time.Time) *identity.Claims {
		return &identity.Claims{ID: id, AllocationID: "a1", Task: "web", IssuedAt: at.Unix(),
			ExpiresAt: at.Add(time.Hour).Unix()}
	}
	_, err = list.Add(revocation.Rule{TokenID: "stolen"})
	fmt.Println(list.Revoked(issued("stolen", now)), list.Revoked(issued("another", now)), err)

	_, err = list.Add(revocation.Rule{AllocationID: "a1", Task: "web", Before: now.Unix()})
	fmt.Println(list.Revoked(issued("old", now.Add(-time.Minute))), list.Revoked(issued("new", now)), err)
	// Output:
	// true false <nil>
	// true false <nil>
}
