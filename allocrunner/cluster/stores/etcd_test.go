package stores

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/allocrunner/internal/proctest"
)

// etcdPlace begins the place of a store in etcd. The addresses of the servers follow.
const etcdPlace = "etcd:"

func openEtcd(endpoints string) cluster.Store {
	var nodes []*etcdtest.Node
	for address := range strings.SplitSeq(endpoints, ",") {
		nodes = append(nodes, &etcdtest.Node{Client: address})
	}
	return etcdtest.Open(nodes...)
}

// TestLinearizableWhileEtcdFails: four processes use a store in three etcd servers. The leader is killed and comes
// back, another server freezes for a while, one process is killed, and one is cut off from etcd for a while. Their
// calls can have happened one after the other, and no commit that returned is lost. The service of the killed process
// ends.
func TestLinearizableWhileEtcdFails(t *testing.T) {
	etcdtest.Path(t)
	nodes, notes := etcdtest.Start(t, 3), t.TempDir()
	proxy := etcdtest.Through(t, nodes[0])
	note := func(id int) string { return filepath.Join(notes, strconv.Itoa(id)) }
	var clients []proctest.Child
	for id := range 4 {
		addresses := []string{nodes[id%3].Client, nodes[(id+1)%3].Client, nodes[(id+2)%3].Client}
		if id == 3 {
			addresses = []string{proxy.Client}
		}
		cmd := exec.Command(os.Args[0], etcdPlace+strings.Join(addresses, ","), strconv.Itoa(id), note(id))
		cmd.Env, cmd.Stderr = append(os.Environ(), clientVariable+"=1"), os.Stderr
		clients = append(clients, proctest.Start(t, cmd))
	}
	// progress waits until all clients that live have done some more.
	progress := func(more int) {
		t.Helper()
		for id := range clients {
			if clients[id].ProcessState != nil {
				continue
			}
			deadline := time.Now().Add(2 * time.Minute)
			for from := steps(note(id), true); steps(note(id), true) < from+more; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) { // between looks at a file
					t.Fatalf("client %d makes no progress", id)
				}
			}
		}
	}
	progress(5)
	leader := etcdtest.Leader(t, nodes...)
	nodes[leader].Proc.Kill()
	if leader == 0 { // the only one that the fourth client has
		nodes[leader].Run(t)
	}
	progress(5)
	if leader != 0 {
		nodes[leader].Run(t)
	}
	nodes[leader].Ready(t)
	follower := (etcdtest.Leader(t, nodes...) + 1) % 3
	if follower == 0 {
		follower = (etcdtest.Leader(t, nodes...) + 2) % 3
	}
	nodes[follower].Signal(t, syscall.SIGSTOP)
	progress(5)
	nodes[follower].Signal(t, syscall.SIGCONT)
	clients[1].Kill()
	killed := time.Now()
	proxy.Cut(true)
	other := clients[3]
	clients = clients[:3]
	for steps(note(3), false) == 0 {
		time.Sleep(20 * time.Millisecond) // between looks
	}
	progress(5)
	proxy.Cut(false)
	clients = append(clients, other)
	progress(5)
	s := etcdtest.Open(nodes...)
	t.Cleanup(func() { s.Close() })
	for clustertest.Get(t, s, "service/1").ModifyIndex > 0 {
		time.Sleep(50 * time.Millisecond) // between looks
		if time.Since(killed) > 2*time.Minute {
			t.Fatal("the service of the killed process stays")
		}
	}
	t.Logf("the service of the killed process was gone after %v", time.Since(killed).Round(time.Millisecond))
	for _, c := range clients {
		c.Kill()
	}
	var events []event
	for id := range clients {
		events = append(events, readEvents(t, note(id))...)
	}
	for _, key := range []string{"k/0", "k/1", "k/2"} { // what has become of all that
		e := event{ID: len(clients), Kind: "get", Key: key, Call: now()}
		e.do(t.Context(), s)
		e.Return = now()
		events = append(events, e)
	}
	t.Logf("%d operations, %d of which failed; the longest time without a commit was %v", len(events),
		len(slices.DeleteFunc(slices.Clone(events), func(e event) bool { return e.Err == "" })), longestGap(events))
	checkLinearizable(t, events)
}

// steps returns how many steps of a client have succeeded, or have not.
func steps(path string, succeeded bool) int {
	data, _ := os.ReadFile(path) // none yet
	count := 0
	for line := range strings.Lines(string(data)) {
		good := strings.Contains(line, `"Err":""`) && strings.Contains(line, `"Uncertain":false`)
		if !strings.Contains(line, `"Return":0`) && good == succeeded {
			count++
		}
	}
	return count
}

// longestGap returns the longest time between the returns of two successive commits.
func longestGap(events []event) (longest time.Duration) {
	var returns []int64
	for _, e := range events {
		if e.Kind != "get" && e.Return > 0 && e.Err == "" && !e.Uncertain && !e.Conflict {
			returns = append(returns, e.Return)
		}
	}
	slices.Sort(returns)
	for i := range returns[min(1, len(returns)):] {
		longest = max(longest, time.Duration(returns[i+1]-returns[i]))
	}
	return longest
}
