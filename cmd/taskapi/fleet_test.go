package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/identity/revocation"
	"taskapi/internal/must"
)

// sleepJob is a job of a name whose task has an identity and sleeps.
const sleepJob = `
job "%s" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}
`

// fleetMachines starts two machines that share a store, each with a job of its own: one and two.
func fleetMachines(t *testing.T) (machines []station, env []string) {
	t.Helper()
	dir := shortDir(t)
	env = []string{"TASKAPI_TEST_STORE=" + filepath.Join(dir, "store")}
	must.OK(t, os.Mkdir(filepath.Join(dir, "store"), 0o700))
	for _, name := range []string{"one", "two"} {
		m := station{dir: filepath.Join(dir, name)}
		file := filepath.Join(dir, name+".hcl")
		must.OK(t, os.WriteFile(file, fmt.Appendf(nil, sleepJob, name), 0o600))
		m.taskapiProcess = startCommandWith(t, self(t), env, "run", "-data-dir", m.dir, file)
		until(t, m.taskapiProcess, "runs its task", func() bool {
			return strings.Contains(m.out.String(), "Task started by client")
		})
		machines = append(machines, m)
		t.Cleanup(func() {
			_ = m.Process.Signal(os.Interrupt) // it may have ended
			if err := m.Wait(); err != nil {
				t.Errorf("%s: %v:\n%s", name, err, m.out)
			}
		})
	}
	return machines, env
}

// client returns a client of the machine's operator.
func (s station) client(t *testing.T) *api.Client {
	t.Helper()
	return must.Get(operatorOf(s.dir, s.id()))(t)
}

// TestFleetOfMachines: the operator of each machine lists the allocations of all, what one revokes all refuse, and each
// serves the keys of all.
func TestFleetOfMachines(t *testing.T) {
	t.Parallel()
	machines, env := fleetMachines(t)
	one, two := machines[0], machines[1]
	client := one.client(t)
	for index, found := uint64(0), 0; found != 2; {
		list, meta, err := client.Allocations().List(&api.QueryOptions{WaitIndex: index, WaitTime: deadline})
		must.OK(t, err)
		found, index = len(list), meta.LastIndex
	}
	_, _, err := client.Allocations().Info(two.id(), nil)
	if err == nil || !strings.Contains(err.Error(), "alloc not found: two.g[0] runs on the machine ") {
		t.Errorf("the other machine's allocation: %v", err)
	}
	run := func(args ...string) string {
		t.Helper()
		p := startCommandWith(t, self(t), env, args...)
		if err := p.Wait(); err != nil {
			t.Fatalf("%v: %v:\n%s", args, err, p.out)
		}
		return p.out.String()
	}
	if said := run("token", "revoke", "-data-dir", one.dir, "--jti", "stolen"); strings.Contains(said, "warning") {
		t.Error(said)
	}
	until(t, two.taskapiProcess, "has the revocation", func() bool {
		list := must.Get(revocation.Open(revocation.Config{Dir: filepath.Join(two.dir, "revocations")}))(t)
		defer list.Close()
		return len(list.Rules()) == 1 && list.Rules()[0].TokenID == "stolen"
	})

	socket := filepath.Join(two.dir, "keys.sock")
	server := startCommandWith(t, self(t), env, "keyring", "serve", "-data-dir", two.dir, "--listen", "unix://"+socket)
	t.Cleanup(func() { _ = server.Process.Signal(os.Interrupt); _ = server.Wait() })
	until(t, server, "serves the keys of both", func() bool {
		response, err := overUnix(socket).Get("http://localhost/.well-known/jwks.json")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		var set struct{ Keys []json.RawMessage }
		return json.NewDecoder(response.Body).Decode(&set) == nil && len(set.Keys) == 2
	})
}
