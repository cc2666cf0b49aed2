package main

import (
	"bytes"
	"os"

	"github.com/google/uuid"
)

// node is this machine under the names that Nomad's API has for one.
type node struct{ id, name string }

// thisNode identifies the machine. The ID is derived from its machine ID (machine-id(5)), which should not be shown as it is, so
// every run on one machine shows the same; without one, from its name.
func thisNode() node {
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	seed, err := os.ReadFile("/etc/machine-id")
	if seed = bytes.TrimSpace(seed); err != nil || len(seed) == 0 {
		seed = []byte(name)
	}
	return node{uuid.NewSHA1(uuid.NameSpaceOID, append([]byte("taskapi node "), seed...)).String(), name}
}
