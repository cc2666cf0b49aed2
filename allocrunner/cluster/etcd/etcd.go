// Package etcd is the cluster.Store of several machines: a prefix of keys in an etcd cluster. It makes the promises of
// cluster.Store, and these. An index of the store is a revision of etcd. Every value is sealed for its key before etcd
// gets it: a value that was changed, or moved to another key, is a damaged entry. Each process has a copy of all
// entries, which a watch keeps up to date. Local reads need no answer of etcd, and go on while etcd is away. Other
// reads and writes then return cluster.ErrUnavailable. A lease lives for LeaseTTL after its last holder has died. A
// holder whose lease has ended because etcd was away begins another one, and writes its entries again.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/internal/table"
)

const (
	// LeaseTTL is how long a lease lives without a sign of life from a holder.
	LeaseTTL = 15 * time.Second
	// renewInterval is how often a holder gives one.
	renewInterval = LeaseTTL / 3

	readTimeout   = 5 * time.Second  // for etcd's answer
	arriveTimeout = 30 * time.Second // for changes, while they arrive
	commitTimeout = 10 * time.Second
	// compareInterval is how often the copy is compared with etcd while nobody reads.
	compareInterval = cluster.FreshTime / 4
	// lagTime is how long the watch may be silent while a change has to arrive. Then it is begun again.
	lagTime = 2 * time.Second
	// silenceTimeout is how long a reader waits for a change while nothing arrives.
	silenceTimeout = 10 * time.Second

	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
	fullPause  = time.Minute // between looks at a store that has more entries than a machine keeps
)

// The keys below the store's prefix.
const (
	entries = "e/" // then the entry's key
	owners  = "o/" // then the owner of a lease
	// head is written with every Commit. Its revision says which changes a reader has to wait for: the revision of etcd
	// grows with other programs' changes, too, of which a watch does not hear.
	head = "head"
)

// Config says where the store is.
type Config struct {
	Prefix   string // of all keys; it ends with a slash
	MaxBytes int    // the bound of the store, for a test; 0 for cluster.MaxBytes
	// Client says how to reach etcd; the first use of the store calls it.
	Client func() (client.Config, error)
	// Sealer returns the sealer of the machines' common key for a purpose.
	Sealer func(purpose string) (cluster.Sealer, error)
}

// Store is one opening of the store.
type Store struct {
	*core
	close func()
	done  <-chan struct{} // closed by close
}

var (
	_ cluster.Store   = (*Store)(nil)
	_ cluster.Fresher = (*Store)(nil)
	_ cluster.Sharer  = (*Store)(nil)
)

// value is what the table has of an entry's value.
type value struct {
	bytes   []byte
	born    uint64 // etcd's create_revision, which an entry that was deleted and written at once does not begin with
	damaged bool
}

// core lives until the Store and all of its leases are closed.
type core struct {
	config Config
	client *client.Client // set before the first question, as sealer is
	sealer cluster.Sealer

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	asking struct {
		sync.Mutex
		next *question     // which has not been asked; nil for none
		turn chan struct{} // has an element for each question under way
	}

	mu       sync.RWMutex // guards the fields below
	users    int          // the store and its leases
	started  bool
	loaded   bool // the table has been read
	behind   bool // it has to be read again
	reloads  int  // how often it was read
	table    *table.Table[value]
	owners   map[string]ownerRecord
	holds    map[*lease]struct{}
	own      uint64            // the index of this process's latest Commit
	pending  map[string]uint64 // by a commit's ID: the index with which the commit has been seen
	changed  chan struct{}     // closed and replaced with each change of these fields
	fresh    time.Time
	cluster  uint64           // the ID of etcd's cluster; 0 before the first answer
	failed   error            // why the table can't be kept up to date; nil when it can
	broken   error            // a failure that only a new opening ends
	endWatch func()           // begins the watch again, at another endpoint
	heard    func() time.Time // when something of the watch arrived last
}

// New returns a store. It touches nothing.
func New(config Config) *Store {
	c := &core{config: config, users: 1, table: table.New[value](),
		owners: map[string]ownerRecord{}, holds: map[*lease]struct{}{}, pending: map[string]uint64{},
		changed: make(chan struct{}), endWatch: func() {}, heard: time.Now}
	if config.MaxBytes > 0 {
		c.table.MaxBytes = config.MaxBytes
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.asking.turn = make(chan struct{}, 2)
	done := make(chan struct{})
	return &Store{c, sync.OnceFunc(func() { close(done); c.leave() }), done}
}

var errClosed = fmt.Errorf("%w: it is closed", cluster.ErrUnavailable)

// Close closes the store in this process.
func (s *Store) Close() error {
	s.close()
	return nil
}

// leave ends one use of the core. The last one ends the core.
func (c *core) leave() {
	c.mu.Lock()
	c.users--
	last := c.users == 0
	c.table.WakeAll()
	c.mu.Unlock()
	if last {
		c.cancel()
		c.work.Wait()
		if c.client != nil {
			c.client.Close()
		}
	}
}

// use begins a use of the store: it waits until the table has been read.
func (s *Store) use(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.done:
		return errClosed
	default:
	}
	return s.ready(ctx)
}

// ready waits until the table has been read, or can't be.
func (c *core) ready(ctx context.Context) error {
	for {
		c.mu.Lock()
		if err := c.setUpLocked(); err != nil {
			c.mu.Unlock()
			return fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
		}
		if !c.started && c.users > 0 {
			c.started = true
			c.work.Go(c.run)
			c.work.Go(c.compare)
		}
		loaded, err, changed := c.loaded, c.failed, c.changed
		if c.broken != nil {
			err = c.broken
		}
		if loaded && c.broken == nil {
			err = nil
		}
		c.mu.Unlock()
		if loaded || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.ctx.Done():
			return errClosed
		}
	}
}

// setUpLocked makes the client and the sealer, unless they are there.
func (c *core) setUpLocked() (err error) {
	if c.sealer == nil {
		if c.sealer, err = c.config.Sealer("cluster"); err != nil {
			return err
		}
	}
	if c.client != nil {
		return nil
	}
	config, err := c.config.Client()
	if err == nil {
		c.client = client.New(config)
	}
	return err
}

// Sealer returns the sealer of the machines' common key for a purpose.
func (c *core) Sealer(purpose string) (cluster.Sealer, error) { return c.config.Sealer(purpose) }

// announceLocked wakes those who wait for a change of the core.
func (c *core) announceLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// unavailable returns the error for etcd's absence, with the cause.
func unavailable(err error) error {
	switch {
	case err == nil || errors.Is(err, cluster.ErrUnavailable):
		return err
	case client.IsRefused(err):
		return fmt.Errorf("%w: %w; check cluster.user, cluster.password_file, and the rights of that user",
			cluster.ErrUnavailable, err)
	}
	return &cluster.AwayError{Err: err, After: lastPause} // by then the store has tried again
}

// run keeps the table up to date until the core ends.
func (c *core) run() {
	pause := firstPause
	for c.ctx.Err() == nil {
		began := time.Now()
		err := c.follow()
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		c.mu.Lock()
		c.failed = unavailable(err)
		c.announceLocked()
		c.mu.Unlock()
		if errors.Is(err, errTooMuch) {
			pause = fullPause
		}
		c.sleep(c.ctx, pause/2+rand.N(pause)) // many machines come back at the same time
		pause = min(2*pause, lastPause)
	}
}

func (c *core) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
}

// compare compares the copy with etcd again and again, so that it stays fresh.
func (c *core) compare() {
	for c.ctx.Err() == nil {
		c.sleep(c.ctx, compareInterval)
		if time.Until(c.FreshUntil()) < cluster.FreshTime-compareInterval/2 {
			ctx, stop := context.WithTimeout(c.ctx, readTimeout)
			_ = c.sync(ctx) // a failure shows in FreshUntil
			stop()
		}
	}
}

// FreshUntil returns until when the copy of this process counts as fresh.
func (c *core) FreshUntil() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.fresh
}

// alive is for the table: etcd deletes the entries of a lease that ends.
func alive(uint64) bool { return true }

func (c *core) key(kind, name string) []byte { return []byte(c.config.Prefix + kind + name) }

// place returns the kind of a key and its name.
func (c *core) place(key []byte) (kind, name string) {
	rest, ok := strings.CutPrefix(string(key), c.config.Prefix)
	if !ok {
		return "", ""
	}
	if rest == head {
		return head, ""
	}
	for _, kind := range []string{entries, owners} {
		if name, ok := strings.CutPrefix(rest, kind); ok && cluster.CheckName("key", name) == nil {
			return kind, name
		}
	}
	return "", ""
}
