// Command authclient runs in a task and prints the allocations that the task sees. It is an example of a client that
// survives what happens to identities and to servers, by its transport, and of tests that show it, with
// taskapi/auth/authtest. It knows nothing of taskapi: it would run unchanged as a task of a Nomad client.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/api"
)

func main() {
	if err := run(os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "authclient:", err)
		os.Exit(1)
	}
}

func run(getenv func(string) string, out io.Writer) error {
	socket, ok := strings.CutPrefix(getenv("NOMAD_UNIX_ADDR"), "unix://")
	secrets := getenv("NOMAD_SECRETS_DIR")
	if !ok || secrets == "" {
		return errors.New("NOMAD_UNIX_ADDR and NOMAD_SECRETS_DIR are not set: run it in a task")
	}
	client, err := newClient(newTransport(socket, filepath.Join(secrets, "nomad_token")))
	if err != nil {
		return err
	}
	defer client.Close()
	allocs, _, err := client.Allocations().List(nil)
	if err != nil {
		return err
	}
	for _, a := range allocs {
		fmt.Fprintln(out, a.ID, a.JobID, a.ClientStatus)
	}
	return nil
}

// newClient returns Nomad's SDK over a transport, which decides where requests go.
func newClient(t *transport) (*api.Client, error) {
	return api.NewClient(&api.Config{Address: "http://task", HttpClient: t.client()})
}
