package stores

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
)

// clientVariable is set in the environment of a process that is a client of a store. The arguments of the process are
// the store's directory, the client's number, and a file.
const clientVariable = "STORES_TEST_CLIENT"

// client uses the store of a directory, or of some etcd servers, as a client, and notes in a file what it does.
func client() {
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "client:", err)
			os.Exit(1)
		}
	}
	id, err := strconv.Atoi(os.Args[2])
	must(err)
	file, err := os.OpenFile(os.Args[3], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	must(err)
	s := Open(Disk, os.Args[1])
	if endpoints, ok := strings.CutPrefix(os.Args[1], etcdPlace); ok {
		s = openEtcd(endpoints)
		lease, err := s.Hold(context.Background(), "owner/"+os.Args[2])
		must(err)
		txn := clustertest.Txn(clustertest.Leased("service/"+os.Args[2], "v", lease.Owner()))
		_, err = s.Commit(context.Background(), txn)
		must(err)
	}
	work(context.Background(), s, id, 1<<30, func(e event) {
		line, err := json.Marshal(e)
		must(err)
		_, err = file.Write(append(line, '\n'))
		must(err)
		if _, remote := s.(cluster.Fresher); remote {
			if e.Err != "" || e.Uncertain {
				time.Sleep(20 * time.Millisecond) // so that an absence makes no thousands of events
			}
			return
		}
		if e.Return != 0 && rand.IntN(4) == 0 { // so that the log is rewritten often
			large := clustertest.Set("large", strings.Repeat("v", 40<<10))
			_, _ = s.Commit(context.Background(), clustertest.Txn(large))
		}
	})
}

// TestLinearizableWhileProcessesAreKilled: several processes use a store. Each is killed at any moment, and another
// takes its place. Their calls can have happened one after the other, and no commit that returned is lost.
func TestLinearizableWhileProcessesAreKilled(t *testing.T) {
	dir, notes := filepath.Join(t.TempDir(), "cluster"), t.TempDir()
	const workers, lives = 4, 5
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for life := range lives {
				id := w*lives + life
				cmd := exec.Command(os.Args[0], dir, strconv.Itoa(id), filepath.Join(notes, strconv.Itoa(id)))
				cmd.Env, cmd.Stderr = append(os.Environ(), clientVariable+"=1"), os.Stderr
				p := proctest.Start(t, cmd)
				for n := 20 + rand.IntN(40); n > 0 && lines(filepath.Join(notes, strconv.Itoa(id))) < n; {
					time.Sleep(time.Millisecond) // between looks at a file
				}
				p.Kill()
			}
		})
	}
	all.Wait()
	var events []event
	for id := range workers * lives {
		events = append(events, readEvents(t, filepath.Join(notes, strconv.Itoa(id)))...)
	}
	s := Open(Disk, dir)
	t.Cleanup(func() { s.Close() })
	for k := range 3 { // what has become of all that
		clustertest.Get(t, s, fmt.Sprintf("k/%d", k))
	}
	work(t.Context(), s, workers*lives, 20, func(e event) {
		if e.Return != 0 {
			events = append(events, e)
		}
	})
	failed := len(slices.DeleteFunc(slices.Clone(events), func(e event) bool { return e.Err == "" }))
	t.Logf("%d operations, %d of which failed", len(events), failed)
	if failed > len(events)/10 {
		t.Error("too many fail")
	}
	checkLinearizable(t, events)
}

func lines(path string) int {
	data, _ := os.ReadFile(path) // none yet
	return strings.Count(string(data), "\n")
}

// readEvents reads the notes of a worker. The last event may have no return.
func readEvents(t testing.TB, path string) (events []event) {
	data := must.Get(os.ReadFile(path))(t)
	for line := range strings.Lines(string(data)) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		// A write may fail on a busy machine's disk: nothing has changed then.
		if e.Err != "" && !strings.Contains(e.Err, cluster.ErrUnavailable.Error()) {
			t.Errorf("%+v", e)
		}
		if e.Return != 0 {
			events[len(events)-1] = e
		} else {
			events = append(events, e)
		}
	}
	return events
}
