package handlers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/internal/route"
	"taskapi/identity"
)

// neighbour is an allocation with an API and a socket of its own. Its ID is in each of its answers.
type neighbour struct {
	*server
	id, job  string
	token    string // of its task
	poor     string // of its task that may do nothing
	restarts atomic.Int64
	wanted   atomic.Int64 // restarts that its own task has requested
}

// only finds one allocation.
type only struct {
	*fakeAlloc
	id string
}

func (o only) Get(id string) (route.Alloc, bool) { return o.fakeAlloc, id == o.id }

// liveOnly says that one allocation lives.
type liveOnly struct {
	id string
	as auth.Allocation
}

func (l liveOnly) Lookup(id string) (*auth.Allocation, auth.Liveness) {
	if id == l.id {
		return &l.as, auth.Live
	}
	return nil, auth.Unknown
}

func newNeighbour(t *testing.T, authenticators func(auth.Allocations) *auth.Authenticator,
	sign func(func(*identity.Claims)) string) *neighbour {
	t.Helper()
	n := &neighbour{id: uuid.NewString()}
	n.job = "job-" + n.id
	as := demo
	as.JobID = n.job
	alloc := quietAlloc(t)
	demoAlloc := *alloc.Snapshot()
	demoAlloc.ID, demoAlloc.JobID, demoAlloc.Name = n.id, n.job, n.job+".web[0]"
	job := *demoAlloc.Job
	job.ID, job.Name, demoAlloc.Job = &n.job, &n.job, &job
	alloc.snapshot = func() *api.Allocation { return &demoAlloc }
	alloc.restartTask = func(context.Context, string) error { n.restarts.Add(1); return nil }
	claims := func(task string) string {
		return sign(func(c *identity.Claims) {
			c.AllocationID, c.JobID, c.Task = n.id, n.job, task
			c.Subject = identity.Subject("global", "default", n.job, "web", task, "default")
		})
	}
	n.token, n.poor = claims("server"), claims("poor")
	owner := auth.Owner{AllocationID: n.id, Task: "server", UID: peer.UID}
	n.server = newServerOf(t, owner, alloc, everyRoute, func(c *handlers.Config) {
		c.Authenticator, c.Allocs = authenticators(liveOnly{n.id, as}), only{alloc, n.id}
		c.Variables = lastingVariables{newFakeVariables("nomad/jobs/" + n.job)}
		c.Services = stayingServices{newFakeServices(instance("default", "x", n.id, 80))}
	})
	return n
}

// TestNeighboursInOneProcess: allocations of one process come and go while requests come on all of their sockets, with
// the tokens of each and for the paths of each. Only its own task is answered on a socket, it sees its own allocation
// alone, and it acts on no other.
func TestNeighboursInOneProcess(t *testing.T) {
	const slots, clients, requests, lives = 8, 8, 150, 24
	_, ring, sign := realAuthenticatorWith(t, live{})
	authenticators := func(allocations auth.Allocations) *auth.Authenticator {
		return authenticatorOf(t, ring, allocations)
	}
	var all sync.Map // each neighbour that there has been, by ID
	begin := func() *neighbour {
		n := newNeighbour(t, authenticators, sign)
		all.Store(n.id, n)
		return n
	}
	var present [slots]struct {
		sync.RWMutex // held for reading during a request
		*neighbour
	}
	for i := range present {
		present[i].neighbour = begin()
	}
	get := func(i int) *neighbour { // which may have ended before the caller uses it
		present[i].RLock()
		defer present[i].RUnlock()
		return present[i].neighbour
	}
	var working sync.WaitGroup
	for c := range clients {
		working.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(c)))
			for range requests {
				sender, other := get(random.IntN(slots)), get(random.IntN(slots))
				slot := &present[random.IntN(slots)]
				func() {
					slot.RLock()
					defer slot.RUnlock()
					if random.IntN(2) == 0 {
						sender = slot.neighbour // else mostly a stranger
					}
					if random.IntN(2) == 0 {
						other = slot.neighbour
					}
					slot.try(t, random, sender, other)
				}()
			}
		})
	}
	for i := range lives {
		slot := &present[i%slots]
		slot.Lock()
		slot.stop()
		slot.neighbour = begin()
		slot.Unlock()
	}
	working.Wait()
	all.Range(func(_, value any) bool {
		if n := value.(*neighbour); n.restarts.Load() != n.wanted.Load() {
			t.Errorf("%s was restarted %d times, and should have been %d times", n.id, n.restarts.Load(), n.wanted.Load())
		}
		return true
	})
}

// try sends a request with a token of the sender for a path of the other on the neighbour's socket.
func (n *neighbour) try(t *testing.T, random *rand.Rand, sender, other *neighbour) {
	paths := []struct {
		method, path string
		strange      []int // the statuses when the path is of another allocation
	}{
		{http.MethodGet, "/v1/allocation/" + other.id, []int{404}},
		{http.MethodGet, "/v1/allocations?prefix=" + other.id, []int{200}},
		{http.MethodGet, "/v1/job/" + other.job, []int{404}},
		{http.MethodGet, "/v1/client/allocation/" + other.id + "/checks", []int{404}},
		{http.MethodGet, "/v1/var/nomad/jobs/" + other.job, []int{403, 404}},
		{http.MethodPut, "/v1/client/allocation/" + other.id + "/restart", []int{403, 404}},
	}
	request := paths[random.IntN(len(paths))]
	token, poor := sender.token, random.IntN(4) == 0
	if poor {
		token = sender.poor
	}
	own, act := n == other, request.method == http.MethodPut
	body := ""
	if act {
		body = `{"TaskName": "server"}`
	}
	what := fmt.Sprintf("%s %s on the socket of %s with a token of %s", request.method, request.path, n.id, sender.id)
	if own && act && sender == n && !poor {
		n.wanted.Add(1)
	}
	got := n.do(t, request.method, request.path, token, body)
	switch {
	case poor || sender != n:
		if got.Status != http.StatusForbidden || got.Body != "Forbidden" {
			t.Errorf("%s: %d %s", what, got.Status, got.Body)
		}
	case own:
		if got.Status != http.StatusOK || !act && !strings.HasSuffix(request.path, "/checks") &&
			!strings.Contains(got.Body, n.id) {
			t.Errorf("%s: %d %s", what, got.Status, got.Body)
		}
	default:
		if !slices.Contains(request.strange, got.Status) || strings.Contains(got.Body, other.id) && got.Status == 200 {
			t.Errorf("%s: %d %s", what, got.Status, got.Body)
		}
	}
}
