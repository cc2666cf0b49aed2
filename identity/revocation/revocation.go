// Package revocation keeps a list of tokens that are refused before they expire: single tokens by their ID, and all
// tokens of an allocation, of a task, or of everybody that were issued before a time. The list is a file that the
// processes of its user share. Every call of Revoked that begins after Add has returned sees the revocation, in every
// process that has the list open. Within a second they notice that the directory or a file in it was removed or
// replaced, and what an earlier version of taskapi has revoked, which knew no counter. A revocation survives restarts,
// and is forgotten when the tokens that it refuses have expired.
//
// Revoked costs a few map look-ups, and no memory; a look at the file is due once a second. Names and signatures here,
// and the meaning of a file of this version, stay as they are within a major version.
package revocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/identity"
	"taskapi/internal/privatefile"
)

var (
	// ErrInvalid means that a rule refuses nothing, or too much.
	ErrInvalid = errors.New("not a revocation")
	// ErrFull means that the list has MaxRules rules.
	ErrFull = errors.New("the list of revocations is full")
	// ErrDamaged means that the list can't be read.
	ErrDamaged = errors.New("the list of revocations is damaged")
)

const (
	// MaxRules bounds the list. Revoking by ID takes a rule for each token; revoking by time takes one for all tokens of a
	// task.
	MaxRules = 4096
	// MaxTokenID is the length in bytes of the longest ID of a token.
	MaxTokenID = 256

	listFile = "revocations.json"
	lockFile = "lock"
	// generationFile grows by a byte with each change, so that one fstat(2) of the open file shows whether there was a
	// change.
	generationFile = "generation"
	// counterFile has a number that changes with each change of the list; see counter.
	counterFile = "counter"
	// lookEvery is how often the file is looked at when the counter shows no change.
	lookEvery = time.Second
	listLimit = 4 << 20 // bytes, more than MaxRules rules need
	format    = 1
	// maxMaxTTL is the longest time.Duration in seconds. Its sum with a time does not overflow.
	maxMaxTTL = int64(math.MaxInt64 / time.Second)
)

// Rule refuses the token with an ID, or the tokens that were issued before a time. Times are whole seconds since the
// Unix epoch.
type Rule struct {
	TokenID      string `json:"jti,omitempty"`    // excludes the next three fields
	AllocationID string `json:"alloc,omitempty"`  // of the tokens; empty for every allocation's
	Task         string `json:"task,omitempty"`   // of the tokens; empty for every task's, and the operator's
	Before       int64  `json:"before,omitempty"` // tokens whose iat is less, or that have no iat
	CreatedAt    int64  `json:"created_at"`
	Until        int64  `json:"until"` // when all tokens that the rule refuses have expired
}

func (r *Rule) check(now int64) error {
	switch {
	case r.TokenID == "" && r.Before == 0:
		return fmt.Errorf("%w: it names no token and no time", ErrInvalid)
	case r.TokenID != "" && (r.Before != 0 || r.AllocationID != "" || r.Task != ""):
		return fmt.Errorf("%w: a token's ID stands alone", ErrInvalid)
	case len(r.TokenID) > MaxTokenID:
		return fmt.Errorf("%w: a token's ID has at most %d bytes", ErrInvalid, MaxTokenID)
	case r.Before < 0 || r.Before > now+1:
		return fmt.Errorf("%w: the time lies ahead, and tokens that are issued until then would be refused, too", ErrInvalid)
	}
	return nil
}

type file struct {
	Format int    `json:"format"`
	MaxTTL int64  `json:"max_ttl"` // seconds: no process that uses the list accepts a token with a longer life
	Rules  []Rule `json:"rules"`
}

// scope is the owner of the tokens that a rule by time refuses.
type scope struct{ allocation, task string }

// snapshot is a list as loaded. It never changes.
type snapshot struct {
	generation int64
	counted    uint64
	version    privatefile.Version // zero for a list that was never written
	rules      []Rule
	tokens     map[string]bool
	before     map[scope]int64
	err        error // why the list could not be read
	replaced   chan struct{}
}

// latest returns the rule that was added last, or the zero Rule.
func (s *snapshot) latest() Rule {
	if len(s.rules) == 0 {
		return Rule{}
	}
	return s.rules[len(s.rules)-1]
}

// List is an open list.
type List struct {
	dir    string
	clock  func() time.Time
	opened Rule // the latest rule when the list was opened

	current    atomic.Pointer[snapshot]
	generation atomic.Pointer[os.File]
	counter    atomic.Pointer[counter]
	looked     atomic.Int64 // when the file was looked at last, in nanoseconds since the Unix epoch
	mu         sync.Mutex   // serialises loads and writes, and guards the fields below
	left       []*os.File   // generations of removed directories, which other goroutines may still use
	pages      []*counter   // that were mapped: another goroutine may still look at one
}

// Config says where a list is.
type Config struct {
	// Dir is the list's directory, which is made with mode 0700 if it is missing. Required.
	Dir string
	// MaxTTL is how far ahead the exp of an accepted token may lie. 0 means identity.DefaultMaxTTL.
	MaxTTL time.Duration
	// Now returns the time; nil: time.Now. Tests move it.
	Now func() time.Time
}

// Open opens a list. Errors: ErrDamaged, privatefile.ErrExposed, wrapped.
func Open(c Config) (*List, error) {
	l := &List{dir: c.Dir, clock: c.Now}
	if l.clock == nil {
		l.clock = time.Now
	}
	if err := l.open(max(c.MaxTTL, identity.DefaultMaxTTL)); err != nil {
		return nil, errors.Join(fmt.Errorf("open revocations %s: %w", c.Dir, err), l.Close())
	}
	return l, nil
}

func (l *List) open(maxTTL time.Duration) error {
	if err := privatefile.EnsureDir(l.dir); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.openGeneration(); err != nil {
		return err
	}
	s := l.loadLocked()
	if s.err != nil {
		return s.err
	}
	l.opened = s.latest()
	if maxTTL <= identity.DefaultMaxTTL {
		return nil
	}
	return l.changeLocked(func(f *file) error {
		f.MaxTTL = max(f.MaxTTL, int64(maxTTL/time.Second))
		return nil
	})
}

func (l *List) openGeneration() error {
	f, err := privatefile.Open(filepath.Join(l.dir, generationFile), os.O_RDWR|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	if old := l.generation.Swap(f); old != nil {
		l.left = append(l.left, old)
	}
	c := openCounter(l.dir)
	l.counter.Store(c)
	l.pages = append(l.pages, c)
	return nil
}

// Close closes the list. No method may be called at the same time, or after it.
func (l *List) Close() error {
	var err error
	for _, f := range append(l.left, l.generation.Swap(nil)) {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	for _, c := range l.pages {
		err = errors.Join(err, c.close())
	}
	l.left, l.pages = nil, nil
	return err
}

// Revoked reports whether a token with the claims is refused. When the list has changed and can't be read, every token
// but the operator's is refused, since any of them may have been revoked.
func (l *List) Revoked(c *identity.Claims) bool {
	s := l.now()
	if s.err != nil {
		return c.Role != identity.RoleOperator
	}
	if c.ID != "" && s.tokens[c.ID] {
		return true
	}
	return len(s.before) > 0 && c.IssuedAt < max(s.before[scope{}], s.before[scope{allocation: c.AllocationID}],
		s.before[scope{task: c.Task}], s.before[scope{c.AllocationID, c.Task}])
}

func (l *List) now() *snapshot {
	s, now := l.current.Load(), l.clock().UnixNano()
	since := time.Duration(now - l.looked.Load()) // negative when the clock was set back
	if n, ok := l.counter.Load().load(); ok && n == s.counted && s.err == nil && 0 <= since && since < lookEvery {
		return s
	}
	l.looked.Store(now)
	if s.err == nil && l.still(s) {
		return s
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.current.Load(); s.err == nil && l.still(s) { // another goroutine has loaded it
		return s
	}
	if _, ok := l.size(); !ok { // somebody removed the directory, or a file in it; perhaps it is there again
		if err := l.openGeneration(); err != nil {
			return l.current.Load() // revoked tokens stay refused
		}
	}
	return l.loadLocked()
}

// still reports whether the files show no change since the list was loaded.
func (l *List) still(s *snapshot) bool {
	size, ok := l.size()
	n, shared := l.counter.Load().load()
	return ok && size == s.generation && (n == s.counted || !shared)
}

// size returns the size of the generation's file, and whether that file and the counter's still exist.
func (l *List) size() (int64, bool) {
	var st unix.Stat_t
	if unix.Fstat(int(l.generation.Load().Fd()), &st) != nil {
		return 0, false
	}
	return st.Size, st.Nlink > 0 && !l.counter.Load().removed()
}

// loadLocked reads the list and publishes it. The counter and the generation are read first, so that a change in
// between is loaded again.
func (l *List) loadLocked() *snapshot {
	counted, _ := l.counter.Load().load()
	generation, _ := l.size()
	f, version, err := l.read(generation)
	s := &snapshot{
		generation: generation, counted: counted, version: version, err: err, replaced: make(chan struct{}),
		tokens: map[string]bool{}, before: map[scope]int64{},
	}
	now := l.clock().Unix()
	for _, r := range f.Rules {
		switch {
		case r.Until <= now:
			continue
		case r.TokenID != "":
			s.tokens[r.TokenID] = true
		default:
			key := scope{r.AllocationID, r.Task}
			s.before[key] = max(s.before[key], r.Before)
		}
		s.rules = append(s.rules, r)
	}
	old := l.current.Load()
	still := old != nil && old.err != nil && s.err != nil
	if still { // a damaged list is read again each time, which is no change
		s.replaced = old.replaced
	}
	l.current.Store(s)
	if old != nil && !still {
		close(old.replaced)
	}
	return s
}

// read reads the list, which is empty before the first change. A list that is missing after a change was lost, which is
// an error.
func (l *List) read(generation int64) (f file, version privatefile.Version, err error) {
	path := filepath.Join(l.dir, listFile)
	data, version, err := privatefile.Read(path, listLimit)
	if errors.Is(err, fs.ErrNotExist) && generation == 0 {
		return file{}, privatefile.Version{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	switch {
	case err != nil:
		return file{}, version, fmt.Errorf("%w: %s: %w: restore it from a backup, or remove it and %s, "+
			"after which nothing is revoked any more", ErrDamaged, path, err, filepath.Join(l.dir, generationFile))
	case f.Format != format:
		return file{}, version, fmt.Errorf("%w: %s has format %d, of another version of taskapi: use that one",
			ErrDamaged, path, f.Format)
	case f.MaxTTL < 0 || f.MaxTTL > maxMaxTTL:
		return file{}, version, fmt.Errorf("%w: %s: max_ttl is %d, and no time: restore it from a backup",
			ErrDamaged, path, f.MaxTTL)
	}
	return f, version, nil
}

// Add adds a rule. It sets CreatedAt, and an Until of 0 to the time when the last token that could be issued now
// expires. A rule about the same tokens as an earlier one replaces it. Expired rules are removed.
//
// A Before of the next second refuses all tokens that were issued until now. Issuers then date new tokens to that
// second, so if another rule has the same Before, Add waits until that second has begun. Errors: ErrInvalid, ErrFull,
// ErrDamaged, wrapped.
func (l *List) Add(r Rule) (Rule, error) {
	now := l.clock().Unix()
	if err := r.check(now); err != nil {
		return Rule{}, err
	}
	if r.Before > now && slices.ContainsFunc(l.Rules(), func(other Rule) bool { return other.Before >= r.Before }) {
		time.Sleep(time.Unix(r.Before, 0).Sub(l.clock()))
		now = l.clock().Unix()
		r.Before = now + 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.changeLocked(func(f *file) error {
		r.CreatedAt = now
		if r.Until == 0 {
			r.Until = now + max(f.MaxTTL, int64(identity.DefaultMaxTTL/time.Second)) + int64(2*identity.Leeway/time.Second)
		}
		f.Rules = slices.DeleteFunc(f.Rules, func(old Rule) bool {
			if r.TokenID == old.TokenID && r.AllocationID == old.AllocationID && r.Task == old.Task {
				// The new rule refuses no less.
				r.Before, r.Until = max(r.Before, old.Before), max(r.Until, old.Until)
				return true
			}
			return old.Until <= now
		})
		if len(f.Rules) >= MaxRules {
			return fmt.Errorf("%w: it has %d: revoke by time, which takes one for a whole task", ErrFull, MaxRules)
		}
		f.Rules = append(f.Rules, r)
		return nil
	})
	return r, err
}

// Merge adds rules of another list as they are. Those that are known, or have expired, change nothing. A Before that
// lies ahead of this machine's clock stands for now. Errors: ErrFull, when some rules were not added; ErrDamaged,
// wrapped.
func (l *List) Merge(rules []Rule) error {
	now := l.clock().Unix()
	var fresh []Rule
	known := l.now()
	for _, r := range rules {
		r.Before = min(r.Before, now+1)
		if r.Until <= now || r.check(now) != nil || slices.ContainsFunc(known.rules, func(old Rule) bool {
			return old.about() == r.about() && old.Before >= r.Before && old.Until >= r.Until
		}) {
			continue
		}
		fresh = append(fresh, r)
	}
	if len(fresh) == 0 {
		return known.err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	full, changed := false, false
	err := l.changeLocked(func(f *file) error {
		f.Rules = slices.DeleteFunc(f.Rules, func(old Rule) bool { return old.Until <= now })
		for _, r := range fresh {
			i := slices.IndexFunc(f.Rules, func(old Rule) bool { return old.about() == r.about() })
			switch {
			case i >= 0 && f.Rules[i].Before >= r.Before && f.Rules[i].Until >= r.Until:
				continue
			case i >= 0:
				r.Before, r.Until = max(r.Before, f.Rules[i].Before), max(r.Until, f.Rules[i].Until)
				f.Rules = append(slices.Delete(f.Rules, i, i+1), r)
			case len(f.Rules) >= MaxRules:
				full = true
				continue
			default:
				f.Rules = append(f.Rules, r)
			}
			changed = true
		}
		if !changed {
			return errKnown
		}
		return nil
	})
	if errors.Is(err, errKnown) {
		err = l.loadLocked().err
	}
	if err == nil && full {
		err = fmt.Errorf("%w: it has %d, and other machines have more", ErrFull, MaxRules)
	}
	return err
}

// about names the tokens that a rule is about, without its times.
func (r *Rule) about() Rule {
	return Rule{TokenID: r.TokenID, AllocationID: r.AllocationID, Task: r.Task}
}

// changeLocked replaces the list on disk by the result of edit, and makes every process notice.
func (l *List) changeLocked(edit func(*file) error) (err error) {
	lock, err := privatefile.Acquire(filepath.Join(l.dir, lockFile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	generation, _ := l.size()
	f, _, err := l.read(generation)
	if err != nil {
		return err
	}
	if err := edit(&f); err != nil {
		return err
	}
	f.Format = format
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := privatefile.Write(filepath.Join(l.dir, listFile), data); err != nil {
		return err
	}
	_, err = l.generation.Load().Write([]byte{'.'})
	if err = errors.Join(err, count(l.dir)); err != nil {
		return fmt.Errorf("the revocation is written, and running allocations see it within a second: %w", err)
	}
	return l.loadLocked().err
}

// errKnown: the file already has the rules. All processes of a machine take over the same ones.
var errKnown = errors.New("the rules are known")

// Rules returns the rules, the oldest first.
func (l *List) Rules() []Rule { return slices.Clone(l.now().rules) }

// Changed returns a channel that is closed when the list has changed. Only a process that calls Revoked, or runs Watch,
// notices changes.
func (l *List) Changed() <-chan struct{} { return l.current.Load().replaced }

// Watch follows the list until ctx ends, so that Changed works without calls of Revoked. It logs each new rule and each
// problem once.
func (l *List) Watch(ctx context.Context, logger *slog.Logger) {
	logger = logger.With("revocations", l.dir)
	problem, latest := "", l.opened
	identity.WatchFile(ctx, filepath.Join(l.dir, listFile), func() bool {
		s := l.look()
		if s.err != nil {
			if s.err.Error() != problem {
				logger.Error("revocations can't be read, and tasks' tokens are refused until they can", "error", s.err)
			}
			problem = s.err.Error()
			return false
		}
		if rule := s.latest(); rule != latest && rule != (Rule{}) {
			logger.Info("tokens revoked", "rules", len(s.rules), "latest", rule.String())
		}
		problem, latest = "", s.latest()
		return true
	})
}

// look returns the current list, even after a change that the generation does not show: the disk was full, or a rule
// has expired.
func (l *List) look() *snapshot {
	s := l.now()
	version, err := privatefile.Stat(filepath.Join(l.dir, listFile))
	now := l.clock().Unix()
	expired := slices.ContainsFunc(s.rules, func(r Rule) bool { return r.Until <= now })
	if !expired && (err != nil || version == s.version) {
		return s
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loadLocked()
}

// String returns what a rule refuses, in words.
func (r Rule) String() string {
	if r.TokenID != "" {
		return fmt.Sprintf("the token with the jti %q", r.TokenID)
	}
	var whose []string
	if r.Task != "" {
		whose = append(whose, fmt.Sprintf("of task %q", r.Task))
	}
	if r.AllocationID != "" {
		whose = append(whose, "of allocation "+r.AllocationID)
	}
	if len(whose) == 0 {
		whose = []string{"of every allocation"}
	}
	return "tokens " + strings.Join(whose, " ") + " issued before " + time.Unix(r.Before, 0).UTC().Format(time.RFC3339)
}
