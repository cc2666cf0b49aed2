// Package etcd is the cluster.Store of several machines: a prefix of keys in an etcd cluster. It makes all promises of
// cluster.Store except the one about ErrFull. An index of the store is a revision of etcd.
//
// Every value is sealed for its key, with the prefix, before it is sent. A value that was changed, or moved to another
// key, is a damaged entry. A value of an earlier version, which was sealed without the prefix, can be read until it is
// written again.
//
// A key of its own shows a process that it has the machines' common key. Any other value that opens shows that, too:
// who may write to etcd without that key can delete values and add others, and hides none by that.
//
// A process that lists or watches a prefix has a copy of the entries, which a watch of etcd keeps up to date. The copy
// ends some minutes after its last use, so unread prefixes cost etcd nothing. Local reads of a copied prefix need no
// answer of etcd, and go on while etcd is away. All other reads and writes then return cluster.ErrUnavailable.
//
// A lease lives for LeaseTTL after its last holder has died. A holder whose lease has ended because etcd was away
// begins another lease, and writes its entries again.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
)

const (
	// LeaseTTL is how long a lease lives unless a holder renews it.
	LeaseTTL = 15 * time.Second
	// renewInterval is how often a holder renews its lease.
	renewInterval = LeaseTTL / 3

	arriveTimeout = 30 * time.Second // for changes, while they arrive
	commitTimeout = 10 * time.Second

	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
	fullPause  = time.Minute // between looks at a prefix that has more entries than a process keeps

	// mostQuestions is how many reads a process sends at the same time. Equal reads that wait are sent as one.
	mostQuestions = 8
	// verifyInterval is how often a process that can open no value may look for one that it can open.
	verifyInterval = 5 * time.Second
)

// The keys below the store's prefix.
const (
	entries = "e/" // then the entry's key
	owners  = "o/" // then the owner of a lease
	proof   = "k"  // its value opens with the machines' common key
)

// Config says where the store is.
type Config struct {
	Prefix string // of all keys; it ends with a slash
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
		next map[string]*question // by range: which have not been asked
		turn chan struct{}        // has an element for each question under way
	}

	mu       sync.RWMutex // guards the fields below
	users    int          // the store and its leases
	verified bool         // this machine's key opens what is in the store
	searched time.Time    // when it opened nothing
	views    []*view
	leases   map[string]*lease // by owner: those that this process holds
	known    uint64            // the latest revision that etcd has told of
	cluster  uint64            // the ID of etcd's cluster; 0 before the first answer
	broken   error             // a failure that only a new opening ends
}

// New returns a store. It touches nothing.
func New(config Config) *Store {
	c := &core{config: config, users: 1, leases: map[string]*lease{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.asking.next, c.asking.turn = map[string]*question{}, make(chan struct{}, mostQuestions)
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
	for _, v := range c.views {
		v.table.WakeAll()
	}
	c.mu.Unlock()
	if last {
		c.cancel()
		c.work.Wait()
		if c.client != nil {
			c.client.Close()
		}
	}
}

// use begins a use of the store. The first one that etcd answers finds out whether this machine has the right key.
func (s *Store) use(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.done:
		return errClosed
	default:
	}
	s.mu.Lock()
	err, broken, verified := s.setUpLocked(), s.broken, s.verified
	s.mu.Unlock()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
	case broken != nil || verified:
		return broken
	}
	return s.failure(ctx, s.verify(ctx))
}

// verify returns an error if there are values, and the machine's key opens none of them.
func (c *core) verify(ctx context.Context) error {
	key := c.key(proof, "")
	for range attempts {
		found, err := c.find(ctx, client.RangeRequest{Key: key})
		if err != nil {
			return err
		}
		var is uint64
		if len(found.KVs) > 0 {
			is = found.KVs[0].ModRevision
			_, err = c.open(found.KVs[0].Value, proof)
		}
		good := is > 0 && err == nil
		if !good {
			if err := c.opensAny(ctx, is > 0); err != nil {
				return err
			}
			sealed, err := c.seal(nil, proof)
			if err != nil {
				return err
			}
			answer, err := c.client.Txn(ctx, client.Txn{
				Compare: []client.Compare{{Key: key, Target: "MOD", Mod: is}},
				Success: []client.Op{{Put: &client.Put{Key: key, Value: sealed}}},
			})
			if err != nil && !client.IsNoSpace(err) && !client.IsRefused(err) {
				return err
			}
			good = err != nil || answer.Succeeded // otherwise another process was first, perhaps with another key
		}
		if good {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.verified = true
			return nil
		}
	}
	return errors.New("others change the proof of the common key all the time")
}

// opensAny looks for an entry that the machine's key opens. It returns an error if there is none, and another entry or
// other values.
func (c *core) opensAny(ctx context.Context, others bool) error {
	c.mu.RLock()
	searched := c.searched
	c.mu.RUnlock()
	if time.Since(searched) < verifyInterval {
		return cluster.ErrKey
	}
	ctx, cancel := context.WithTimeout(ctx, arriveTimeout)
	defer cancel()
	prefix, opened := string(c.key(entries, "")), false
	_, err := c.pages(ctx, client.RangeRequest{Key: []byte(prefix)}, func(kvs []client.KV) error {
		for _, kv := range kvs {
			others = true
			if _, _, err := c.openEntry(string(kv.Key[len(prefix):]), kv.Value); err == nil {
				opened = true
				return errFound
			}
		}
		return nil
	})
	switch {
	case opened || err == nil && !others:
		return nil
	case err != nil:
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.searched = time.Now()
	return cluster.ErrKey
}

// errFound ends a search.
var errFound = errors.New("found")

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

// failure returns the error of a call: that of its context with the cause, or one that is cluster.ErrUnavailable.
func (c *core) failure(ctx context.Context, err error) error {
	switch end := ctx.Err(); {
	case err == nil || end == nil:
		return unavailable(err)
	case errors.Is(err, end):
		return err
	default:
		return fmt.Errorf("%w: %w", end, err)
	}
}

// silent is the error for a call whose context ends before etcd has answered.
func silent(ctx context.Context) error { return fmt.Errorf("etcd has not answered: %w", ctx.Err()) }

// find asks etcd for keys.
func (c *core) find(ctx context.Context, r client.RangeRequest) (client.RangeResponse, error) {
	known := c.latest()
	found, err := c.client.Range(ctx, r)
	if err == nil {
		err = c.checkHeader(found.Header, known)
	}
	return found, err
}

// latest returns the latest revision that etcd has told of.
func (c *core) latest() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.known
}

var errBack = errors.New("etcd's revision went back: a backup was restored, or another etcd answers. Restart the " +
	"processes of taskapi to accept that")

// checkHeader refuses an answer of another cluster, and one that is older than what was known before the question.
func (c *core) checkHeader(h client.Header, known uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case h.Revision == 0:
		return errors.New("etcd does not say at which revision it is")
	case c.cluster == 0:
		c.cluster = h.ClusterID
	case c.cluster != h.ClusterID, h.Revision < known:
		c.broken = fmt.Errorf("%w: %w (it was %d and is %d)", cluster.ErrUnavailable, errBack, known, h.Revision)
		for _, v := range c.views {
			v.endWatch()
			v.table.WakeAll()
			v.announceLocked()
		}
	}
	c.known = max(c.known, h.Revision)
	return c.broken
}

// pause waits for searchPause, or until ctx or the core ends.
func (c *core) pause(ctx context.Context) {
	timer := time.NewTimer(searchPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
}

func (c *core) key(kind, name string) []byte { return []byte(c.config.Prefix + kind + name) }
