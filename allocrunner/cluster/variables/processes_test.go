package variables_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/identity"
)

// workerDir names, in the environment of a process of this test binary, the directory of the store that it is to use.
const workerDir = "TASKAPI_TEST_VARIABLES"

func TestMain(m *testing.M) {
	if dir := os.Getenv(workerDir); dir != "" {
		if err := work(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// The clock of leases runs faster in workers, by the factor faster, so that the locks of killed workers expire while
// other workers go on.
const (
	faster = 2000
	ttl    = int64(10*time.Second) / faster // in nanoseconds as the events have them
	delay  = int64(time.Second) / faster
)

// event is a step of a worker, with its result.
type event struct {
	ID           string // of the worker and the step
	Call, Return int64  // nanoseconds since the machine's start; Return is 0 while nothing has come of it
	Kind, Path   string
	Lock         string // the lock's ID, empty for none
	Check        uint64 // the index that cas expects
	Value        string // empty when there is no variable, or no item
	Modify       uint64
	Exists       bool
	Refused      bool // by a lock, or for want of one
	Conflict     bool // with another index
}

// openWorker opens the variables of a directory, with the fast clock.
func openWorker(dir string) (*variables.Service, func() error, error) {
	ring, err := identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(dir, "keyring")})
	if err != nil {
		return nil, nil, err
	}
	sealer, err := ring.Sealer("variables")
	if err != nil {
		return nil, nil, err
	}
	store := disk.New(filepath.Join(dir, "cluster"))
	now := func() (variables.Moment, error) {
		m, err := variables.Now()
		m.Since *= faster
		return m, err
	}
	return variables.New(variables.Config{Store: store, Sealer: sealer, Now: now}), store.Close, nil
}

func nanoseconds() int64 {
	m, err := variables.Now()
	if err != nil {
		panic(err)
	}
	return int64(m.Since)
}

// work uses variables until standard input ends. Each step is printed before it is begun, and again when it is over.
func work(dir string) error {
	kept, closing, err := openWorker(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	out := json.NewEncoder(os.Stdout)
	held, seen := map[string]string{}, map[string]uint64{} // by path
	for n := 0; ctx.Err() == nil; n++ {
		e := event{ID: fmt.Sprintf("%d/%d", os.Getpid(), n), Path: fmt.Sprintf("p%d", rand.IntN(3))}
		e.Check, e.Lock, e.Value = seen[e.Path], held[e.Path], e.ID
		kinds := []string{"get", "get", "put", "put", "cas", "cas", "acquire", "delete"}
		if e.Lock != "" {
			kinds = []string{"get", "put", "put", "renew", "release"}
		}
		if e.Kind = kinds[rand.IntN(len(kinds))]; e.Kind == "acquire" {
			e.Lock, e.Value = e.ID, ""
		}
		e.Call = nanoseconds()
		if err := out.Encode(e); err != nil {
			return err
		}
		if err := e.do(context.Background(), kept); err != nil {
			return fmt.Errorf("%s %s: %w", e.Kind, e.Path, err)
		}
		e.Return = nanoseconds()
		if err := out.Encode(e); err != nil {
			return err
		}
		seen[e.Path] = e.Modify
		switch {
		case e.Kind == "acquire" && !e.Refused:
			held[e.Path] = e.Lock
		case e.Kind == "release", e.Refused && rand.IntN(3) == 0: // it may try what is not its own any more
			delete(held, e.Path)
		}
	}
	return closing()
}

// do makes the step. It returns an error that no step may have.
func (e *event) do(ctx context.Context, kept *variables.Service) error {
	v := variable(e.Path, "k", e.Value)
	if e.Lock != "" {
		v.Lock = &api.VariableLock{ID: e.Lock}
	}
	var err error
	switch e.Kind {
	case "get":
		v, e.Modify, err = kept.Read(ctx, ns, e.Path)
		if e.Value, e.Exists = "", v != nil; v != nil {
			e.Value = v.Items["k"]
		} else {
			e.Modify = 0
		}
	case "put":
		_, e.Modify, err = kept.Put(ctx, v, nil)
	case "cas":
		_, e.Modify, err = kept.Put(ctx, v, &e.Check)
	case "acquire":
		v.Items, v.Lock = nil, &api.VariableLock{ID: e.Lock, TTL: "10s", LockDelay: "1s"}
		_, e.Modify, err = kept.Acquire(ctx, v)
	case "renew":
		_, _, err = kept.Renew(ctx, ns, e.Path, e.Lock)
	case "release":
		_, e.Modify, err = kept.Release(ctx, ns, e.Path, e.Lock)
	case "delete":
		_, err = kept.Delete(ctx, ns, e.Path, nil)
	}
	conflict, isConflict := errors.AsType[*variables.ConflictError](err)
	switch {
	case isConflict:
		e.Conflict, e.Refused = !conflict.Locked, conflict.Locked
	case errors.Is(err, variables.ErrLocked), errors.Is(err, variables.ErrNotLocked),
		errors.Is(err, variables.ErrNotFound):
		e.Refused = true
	default:
		return err
	}
	return nil
}

// cell is the state of one variable. Its lease was begun between from and to.
type cell struct {
	exists   bool
	value    string
	modify   uint64 // 0 while that of a write that nobody has heard of is unknown
	holder   string
	from, to int64
}

// free and locked report whether the lock may have been free, or held, during an event. Near its end both are possible.
func (c cell) free(e event) bool   { return c.holder == "" || e.Return-c.from >= 2*ttl+delay }
func (c cell) locked(e event) bool { return c.holder != "" && e.Call-c.to < 2*ttl+delay }

// lets reports whether the event's lock may have let it write, and whether it may have refused it.
func (c cell) lets(e event) (yes, no bool) {
	if e.Lock == "" {
		return c.free(e), c.locked(e)
	}
	return c.holder == e.Lock && c.locked(e), c.holder != e.Lock || c.free(e)
}

// step returns the variable after an event. An event without an outcome may have been applied or not.
func (c cell) step(e event) (bool, cell) {
	pending := e.Return == math.MaxInt64
	written := cell{exists: true, value: e.Value, modify: e.Modify}
	if e.Lock != "" {
		written.holder, written.from, written.to = c.holder, c.from, c.to
	}
	yes, no := c.lets(e)
	expected := e.Kind != "cas" || c.modify == e.Check || c.exists && c.modify == 0
	switch e.Kind {
	case "get":
		if pending {
			return true, c
		}
		ok := c.exists == e.Exists && c.value == e.Value && (c.modify == e.Modify || c.exists && c.modify == 0)
		c.modify = e.Modify
		return ok, c
	case "put", "cas":
		switch {
		case e.Conflict:
			return !expected || c.exists && c.modify == 0, c
		case e.Refused:
			return expected && no, c
		case pending && (!expected || !yes):
			return true, c
		}
		return expected && yes, written
	case "delete":
		switch {
		case e.Refused:
			return c.exists && c.locked(e), c
		case c.exists && !c.free(e):
			return pending, c
		}
		return true, cell{}
	case "acquire":
		switch {
		case e.Refused:
			return c.locked(e), c
		case !c.free(e):
			return pending, c
		}
		return true, cell{exists: true, value: c.value, modify: e.Modify, holder: e.Lock, from: e.Call, to: e.Return}
	case "renew":
		switch {
		case e.Refused:
			return c.holder != e.Lock || e.Return-c.from >= 2*ttl, c
		case pending && c.holder == e.Lock:
			c.to = e.Return
			return true, c
		case pending:
			return true, c
		}
		ok := c.holder == e.Lock && e.Call-c.to < 2*ttl
		c.from, c.to = e.Call, e.Return
		return ok, c
	case "release":
		switch {
		case e.Refused:
			return no, c
		case pending && !yes:
			return true, c
		}
		return yes, cell{exists: true, value: c.value, modify: e.Modify}
	}
	return false, c
}

// TestLinearizable: processes write, lock and delete the same variables, and some are killed. Every answer is one that
// a single variable would have given, in an order of the steps that fits their times, and nobody gets a lock before it
// has expired.
func TestLinearizable(t *testing.T) {
	dir := t.TempDir()
	if _, closing, err := openWorker(dir); err != nil { // makes the key ring
		t.Fatal(err)
	} else if err := closing(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // guards the field below
	events := map[string]event{}
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for range []int{1, 3, 2, 1}[n] { // how many processes follow one another; all but the last are killed
				last := n == 0 || n == 3
				runWorker(t, dir, last, 60+rand.IntN(200), func(e event) {
					mu.Lock()
					defer mu.Unlock()
					events[e.ID] = e
				})
			}
		})
	}
	all.Wait()
	byPath := map[string][]porcupine.Operation{}
	kinds := map[string]int{}
	for _, e := range events {
		if e.Return == 0 {
			e.Return = math.MaxInt64
		}
		kinds[fmt.Sprintf("%s refused=%v conflict=%v pending=%v", e.Kind, e.Refused, e.Conflict,
			e.Return == math.MaxInt64)]++
		byPath[e.Path] = append(byPath[e.Path], porcupine.Operation{Input: e, Call: e.Call, Return: e.Return})
	}
	t.Log(len(events), kinds)
	model := porcupine.Model{
		Init: func() any { return cell{} },
		Step: func(state, input, _ any) (bool, any) {
			ok, next := state.(cell).step(input.(event))
			return ok, next
		},
		DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
	}
	for path, operations := range byPath {
		if got := porcupine.CheckOperationsTimeout(model, operations, time.Minute); got != porcupine.Ok {
			t.Errorf("%d steps on %s: %s", len(operations), path, got)
		}
	}
}

// runWorker runs a process for so many steps, and then ends it, or kills it.
func runWorker(t *testing.T, dir string, gracefully bool, steps int, seen func(event)) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), workerDir+"="+dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Error(err)
		return
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Error(err)
		return
	}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	lines := bufio.NewScanner(stdout)
	for n := 0; lines.Scan(); n++ {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			break // it was killed while it wrote
		}
		seen(e)
		switch {
		case n < 2*steps:
		case gracefully:
			_ = stdin.Close()
		default:
			_ = cmd.Process.Kill()
		}
	}
	err = cmd.Wait()
	if gracefully && err != nil {
		t.Errorf("a worker: %v", err)
	}
}
