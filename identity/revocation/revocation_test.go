package revocation_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/internal/must"
	"taskapi/internal/privatefile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, dir string) *revocation.List {
	t.Helper()
	l := must.Get(revocation.Open(revocation.Config{Dir: dir}))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func add(t *testing.T, l *revocation.List, r revocation.Rule) revocation.Rule {
	t.Helper()
	r = must.Get(l.Add(r))(t)
	return r
}

// TestRevoked: each rule refuses what it names, in every list of the directory from the moment that Add returns, and
// nothing else.
func TestRevoked(t *testing.T) {
	now := time.Now().Unix()
	token := func(id, alloc, task string, issued int64) *identity.Claims {
		return &identity.Claims{ID: id, AllocationID: alloc, Task: task, IssuedAt: issued}
	}
	old, young := now-100, now-10
	for name, test := range map[string]struct {
		rule revocation.Rule
		yes  []*identity.Claims
		no   []*identity.Claims
	}{
		"by ID": {
			revocation.Rule{TokenID: "j"}, []*identity.Claims{token("j", "a", "t", young), token("j", "b", "", 0)},
			[]*identity.Claims{token("i", "a", "t", old), token("", "a", "t", old)},
		},
		"a task": {
			revocation.Rule{Task: "t", Before: now - 50},
			[]*identity.Claims{token("j", "a", "t", old), token("j", "b", "t", old), token("j", "a", "t", 0),
				token("j", "a", "t", now-51)},
			[]*identity.Claims{token("j", "a", "t", young), token("j", "a", "u", old), token("j", "a", "", old),
				token("j", "a", "t", now-50)},
		},
		"an allocation": {
			revocation.Rule{AllocationID: "a", Before: now - 50}, []*identity.Claims{token("j", "a", "t", old),
				token("j", "a", "", old)},
			[]*identity.Claims{token("j", "b", "t", old), token("j", "a", "t", young)},
		},
		"a task of an allocation": {
			revocation.Rule{AllocationID: "a", Task: "t", Before: now - 50}, []*identity.Claims{token("j", "a", "t", old)},
			[]*identity.Claims{token("j", "b", "t", old), token("j", "a", "u", old), token("j", "a", "t", young)},
		},
		"everybody": {
			revocation.Rule{Before: now - 50}, []*identity.Claims{token("j", "a", "t", old),
				token("", "", "", 0)}, []*identity.Claims{token("j", "a", "t", young)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "r")
			mine, theirs := open(t, dir), open(t, dir)
			for _, c := range append(test.yes, test.no...) {
				if mine.Revoked(c) || theirs.Revoked(c) {
					t.Fatalf("%+v is revoked by nothing", c)
				}
			}
			changed := mine.Changed()
			add(t, mine, test.rule)
			for who, l := range map[string]*revocation.List{"the list that added it": mine, "one that was open": theirs,
				"one opened later": open(t, dir)} {
				for _, c := range test.yes {
					if !l.Revoked(c) {
						t.Errorf("%s: %+v is not revoked", who, c)
					}
				}
				for _, c := range test.no {
					if l.Revoked(c) {
						t.Errorf("%s: %+v is revoked", who, c)
					}
				}
			}
			select {
			case <-changed:
			default:
				t.Error("Changed was not closed")
			}
		})
	}
}

// TestForgotten: a rule goes when what it refuses has expired, from memory and from the file, and not before.
func TestForgotten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	l := open(t, dir)
	now := time.Now().Unix()
	add(t, l, revocation.Rule{TokenID: "expired", Until: now - 1})
	add(t, l, revocation.Rule{TokenID: "lasts", Until: now + 1000})
	if l.Revoked(&identity.Claims{ID: "expired"}) || !l.Revoked(&identity.Claims{ID: "lasts"}) {
		t.Error("a rule does not end when what it refuses has expired")
	}
	data, err := os.ReadFile(filepath.Join(dir, "revocations.json"))
	if err != nil || strings.Contains(string(data), `"expired"`) || !strings.Contains(string(data), `"lasts"`) {
		t.Errorf("the file holds %s, %v", data, err)
	}
	r := add(t, l, revocation.Rule{Before: now})
	if longest := now + int64(identity.DefaultMaxTTL/time.Second); r.Until < longest || r.Until > longest+60 {
		t.Errorf("a rule for every token ends at %d, want %d", r.Until, longest)
	}
	// A process that accepts tokens of a longer life makes rules last longer, also those of others.
	longer := must.Get(revocation.Open(revocation.Config{Dir: dir, MaxTTL: 3 * identity.DefaultMaxTTL}))(t)
	defer longer.Close()
	if r := add(t, l, revocation.Rule{Task: "t", Before: now}); r.Until < now+int64(3*identity.DefaultMaxTTL/time.Second) {
		t.Errorf("with tokens of three years, it ends at %d", r.Until)
	}
}

// TestSameTokens: a rule about the same tokens takes the place of the other, and never refuses less.
func TestSameTokens(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "r"))
	now := time.Now().Unix()
	add(t, l, revocation.Rule{Task: "t", Before: now})
	add(t, l, revocation.Rule{Task: "t", Before: now - 1000})
	if rules := l.Rules(); len(rules) != 1 || rules[0].Before != now {
		t.Errorf("rules %+v", rules)
	}
}

func TestInvalid(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "r"))
	for _, r := range []revocation.Rule{
		{}, {Task: "t"}, {TokenID: "j", Task: "t"}, {TokenID: "j",
			Before: 1}, {Before: time.Now().Unix() + 60}, {Before: -1}, {TokenID: strings.Repeat("j", 257)},
	} {
		if _, err := l.Add(r); !errors.Is(err, revocation.ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if len(l.Rules()) != 0 {
		t.Error("a rule that was refused is in the list")
	}
}

func TestFull(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	l := open(t, dir)
	add(t, l, revocation.Rule{TokenID: "first"})
	var many []string
	for i := range revocation.MaxRules {
		many = append(many, fmt.Sprintf(`{"jti":"j%d","created_at":1,"until":99999999999}`, i))
	}
	document := `{"format":1,"max_ttl":0,"rules":[` + strings.Join(many, ",") + `]}`
	must.OK(t, privatefile.Write(filepath.Join(dir, "revocations.json"), []byte(document)))
	if _, err := l.Add(revocation.Rule{TokenID: "one more"}); !errors.Is(err, revocation.ErrFull) {
		t.Error("a full list:", err)
	}
	if _, err := l.Add(revocation.Rule{TokenID: "j7"}); err != nil {
		t.Error("a rule that is there already:", err)
	}
}

// TestUnreadable: when something was revoked and nobody can tell what, every task is refused and the operator is not; a
// list that was bad before the start is an error.
func TestUnreadable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	l, other := open(t, dir), open(t, dir)
	add(t, other, revocation.Rule{TokenID: "j"})
	path := filepath.Join(dir, "revocations.json")
	good := must.Read(t, path)
	must.OK(t, privatefile.Write(path, []byte("{")))
	if !l.Revoked(&identity.Claims{ID: "i", Task: "t"}) || l.Revoked(&identity.Claims{Role: identity.RoleOperator}) {
		t.Error("a damaged list lets a task in, or shuts the operator out")
	}
	changed := l.Changed()
	if l.Revoked(&identity.Claims{ID: "i", Task: "t"}); l.Changed() != changed {
		t.Error("each question about a damaged list is heard of as a change: who follows it never rests")
	}
	if _, err := l.Add(revocation.Rule{TokenID: "i"}); !errors.Is(err, revocation.ErrDamaged) {
		t.Error("Add to a damaged list:", err)
	}
	if _, err := revocation.Open(revocation.Config{Dir: dir}); !errors.Is(err, revocation.ErrDamaged) {
		t.Error("Open of a damaged list:", err)
	}
	must.OK(t, privatefile.Write(path, good))
	if l.Revoked(&identity.Claims{ID: "i", Task: "t"}) || !l.Revoked(&identity.Claims{ID: "j", Task: "t"}) {
		t.Error("a list that was repaired is not read")
	}
	select {
	case <-changed:
	default:
		t.Error("the repair of a list is not heard of")
	}
	must.OK(t, os.Chmod(path, 0o644))
	if _, err := revocation.Open(revocation.Config{Dir: dir}); !errors.Is(err, privatefile.ErrExposed) {
		t.Error("Open of a list that others can read:", err)
	}
}

// TestLost: a list that was written and is gone revokes nothing in silence: to open it, or to add to it, is an error
// until another list is begun.
func TestLost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	l := open(t, dir)
	add(t, l, revocation.Rule{TokenID: "j"})
	must.OK(t, os.Remove(filepath.Join(dir, "revocations.json")))
	if !l.Revoked(&identity.Claims{ID: "j"}) {
		t.Error("forgotten with the list by those who had read it")
	}
	if _, err := l.Add(revocation.Rule{TokenID: "i"}); !errors.Is(err, revocation.ErrDamaged) {
		t.Error("Add to a list that is lost:", err)
	}
	if _, err := revocation.Open(revocation.Config{Dir: dir}); !errors.Is(err, revocation.ErrDamaged) {
		t.Error("Open of a list that is lost:", err)
	}
	must.OK(t, os.Remove(filepath.Join(dir, "generation")))
	if add(t, open(t, dir), revocation.Rule{TokenID: "i"}); !l.Revoked(&identity.Claims{ID: "i"}) ||
		l.Revoked(&identity.Claims{ID: "j"}) {
		t.Error("a list that is begun again is not read")
	}
}

// openAt opens a list whose clock shows the time that now has.
func openAt(t *testing.T, dir string, now *time.Time) *revocation.List {
	t.Helper()
	l := must.Get(revocation.Open(revocation.Config{Dir: dir, Now: func() time.Time { return *now }}))(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestCutCounter: a counter that was cut off, or put back, hides no revocation, and does not end the process.
func TestCutCounter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	now := time.Now()
	l, other := openAt(t, dir, &now), open(t, dir)
	add(t, other, revocation.Rule{TokenID: "i"})
	must.OK(t, os.Truncate(filepath.Join(dir, "counter"), 0))
	if !l.Revoked(&identity.Claims{ID: "i"}) {
		t.Error("a revocation is not seen once the counter was cut off")
	}
	if add(t, other, revocation.Rule{TokenID: "h"}); !l.Revoked(&identity.Claims{ID: "h"}) {
		t.Error("a revocation does not put the counter back")
	}
	must.OK(t, os.Truncate(filepath.Join(dir, "counter"), 0))
	next := open(t, dir) // puts it back
	add(t, next, revocation.Rule{TokenID: "j"})
	if !l.Revoked(&identity.Claims{ID: "j"}) {
		t.Error("a revocation is not seen once the counter was put back")
	}
}

// TestBadCounter: what is in the counter's place without being the list's keeps no revocation from being seen at once,
// also when it comes there later. A process that revokes says that it could not count.
func TestBadCounter(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other")
	must.OK(t, os.WriteFile(other, make([]byte, 8), 0o600))
	for name, put := range map[string]func(path string) error{
		"a fifo":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link":      func(path string) error { return os.Symlink(other, path) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a file for everyone": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0), os.Chmod(path, 0o666))
		},
		"another user's file": func(path string) error {
			return errors.Join(os.WriteFile(path, make([]byte, 8), 0o600), os.Chown(path, 4321, 4321))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's file" && os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			dir := filepath.Join(t.TempDir(), "r")
			path, now := filepath.Join(dir, "counter"), time.Now()
			early := openAt(t, dir, &now)
			must.OK(t, errors.Join(os.Remove(path), put(path)))
			late, third := open(t, dir), open(t, dir)
			for _, id := range []string{"i", "j"} {
				if early.Revoked(&identity.Claims{ID: id}) || late.Revoked(&identity.Claims{ID: id}) {
					t.Error("refused before it is revoked")
				}
				if _, err := third.Add(revocation.Rule{TokenID: id}); err == nil || !strings.Contains(err.Error(), path) {
					t.Errorf("Add = %v, want an error about %s", err, path)
				}
				if !late.Revoked(&identity.Claims{ID: id}) {
					t.Error("a revocation is not seen")
				}
				now = now.Add(time.Second)
				if !early.Revoked(&identity.Claims{ID: id}) {
					t.Error("a revocation is not seen after a second")
				}
			}
		})
	}
}

// TestReplacedCounter: a counter that was removed and made again is looked at within a second, and from then on shows
// revocations at once.
func TestReplacedCounter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	now := time.Now()
	l := openAt(t, dir, &now)
	must.OK(t, os.Remove(filepath.Join(dir, "counter")))
	other := open(t, dir)
	now = now.Add(time.Second)
	l.Revoked(&identity.Claims{ID: "i"})
	add(t, other, revocation.Rule{TokenID: "i"})
	if !l.Revoked(&identity.Claims{ID: "i"}) {
		t.Error("a revocation is not seen")
	}
}

// TestUncountedChange: a change that an earlier version of taskapi made, which knew no counter, is seen within a
// second.
func TestUncountedChange(t *testing.T) {
	for _, shift := range []time.Duration{time.Second, -time.Hour} { // somebody may set the clock back meanwhile
		dir := filepath.Join(t.TempDir(), "r")
		now := time.Now()
		l, other := openAt(t, dir, &now), open(t, dir)
		before := must.Read(t, filepath.Join(dir, "counter"))
		l.Revoked(&identity.Claims{ID: "i"})
		add(t, other, revocation.Rule{TokenID: "i"})
		must.OK(t, os.WriteFile(filepath.Join(dir, "counter"), before, 0o600))
		now = now.Add(shift)
		if !l.Revoked(&identity.Claims{ID: "i"}) {
			t.Errorf("not seen %v later", shift)
		}
	}
}

// TestRemovedDirectory: what was revoked stays so for those who have the list open, and a directory that is made again
// is seen within a second.
func TestRemovedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	now := time.Now()
	l := openAt(t, dir, &now)
	add(t, l, revocation.Rule{TokenID: "j"})
	must.OK(t, os.RemoveAll(dir))
	if !l.Revoked(&identity.Claims{ID: "j"}) {
		t.Error("forgotten with its directory")
	}
	if l.Revoked(&identity.Claims{ID: "i", Task: "t"}) {
		t.Error("tokens that were not revoked are refused without the directory")
	}
	add(t, open(t, dir), revocation.Rule{TokenID: "i"})
	now = now.Add(time.Second)
	if !l.Revoked(&identity.Claims{ID: "i"}) {
		t.Error("the new directory is not seen after a second")
	}
}

// TestWatch: a change is heard of without a question, also when the generation was not counted.
func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	l, other := open(t, dir), open(t, dir)
	var log strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { l.Watch(ctx, slog.New(slog.NewTextHandler(&log, nil))) })
	changed := l.Changed()
	add(t, other, revocation.Rule{Task: "t", Before: time.Now().Unix()})
	<-changed
	document := `{"format":1,"max_ttl":0,"rules":[{"jti":"uncounted","created_at":1,"until":99999999999}]}`
	must.OK(t, privatefile.Write(filepath.Join(dir, "revocations.json"), []byte(document)))
	// One change may be heard of twice: as the file is replaced, and as it is counted.
	for changed = l.Changed(); !l.Revoked(&identity.Claims{ID: "uncounted"}); changed = l.Changed() {
		<-changed
	}
	cancel()
	watching.Wait()
	if n := strings.Count(log.String(), "tokens revoked"); n < 1 || n > 2 {
		t.Errorf("log:\n%s", log.String())
	}
}

// TestWatchSaysOnce what is wrong with a list, however often it is looked at.
func TestWatchSaysOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	l := open(t, dir)
	add(t, l, revocation.Rule{TokenID: "j"})
	logged := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		l.Watch(ctx, slog.New(slog.NewTextHandler(lines(logged), &slog.HandlerOptions{Level: slog.LevelError})))
	})
	path := filepath.Join(dir, "revocations.json")
	good := must.Read(t, path)
	damage := func() {
		must.OK(t, privatefile.Write(path, []byte("{")))
	}
	damage()
	if line := <-logged; !strings.Contains(line, "revocations can't be read") {
		t.Errorf("logged %q", line)
	}
	damage()
	damage()
	changed := l.Changed()
	must.OK(t, privatefile.Write(path, good))
	<-changed
	if l.Revoked(&identity.Claims{ID: "i", Task: "t"}) {
		t.Error("a list that was repaired is not read")
	}
	cancel()
	watching.Wait()
	if len(logged) > 0 {
		t.Errorf("it says again: %q", <-logged)
	}
}

// lines gets what is logged.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// TestRuleInWords: what is listed of a rule says all that it is about, and when it was made.
func TestRuleInWords(t *testing.T) {
	before := time.Now().Unix()
	r := add(t, open(t, filepath.Join(t.TempDir(), "r")), revocation.Rule{Task: "web", AllocationID: "a1", Before: before})
	at := time.Unix(before, 0).UTC().Format(time.RFC3339)
	if want := `tokens of task "web" of allocation a1 issued before ` + at; r.String() != want {
		t.Errorf("%q, want %q", r, want)
	}
	if r.CreatedAt < before || r.CreatedAt > time.Now().Unix() {
		t.Errorf("made at %d, want %d or a little later", r.CreatedAt, before)
	}
}

// TestCloseLeavesNoFile open.
func TestCloseLeavesNoFile(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(entries)
	}
	dir := filepath.Join(t.TempDir(), "r")
	before := count()
	l := must.Get(revocation.Open(revocation.Config{Dir: dir}))(t)
	if err := l.Close(); err != nil || count() != before {
		t.Errorf("%d files are open, %v; want %d", count(), err, before)
	}
}

// TestManyAtOnce loses no rule of several that are added at once by lists of their own.
func TestManyAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	var adding sync.WaitGroup
	for i := range 8 {
		l := open(t, dir)
		adding.Go(func() {
			for j := range 3 {
				if _, err := l.Add(revocation.Rule{TokenID: fmt.Sprintf("%d-%d", i, j)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	adding.Wait()
	if got := len(open(t, dir).Rules()); got != 24 {
		t.Errorf("%d rules, want 24", got)
	}
}

func TestQuestionCostsNoMemory(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "r"))
	add(t, l, revocation.Rule{Task: "t", Before: time.Now().Unix()})
	c := &identity.Claims{ID: "j", AllocationID: "a", Task: "t", IssuedAt: time.Now().Unix()}
	if n := testing.AllocsPerRun(100, func() { l.Revoked(c) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRevoked(b *testing.B) {
	l := must.Get(revocation.Open(revocation.Config{Dir: filepath.Join(b.TempDir(), "r")}))(b)
	defer l.Close()
	c := &identity.Claims{ID: "j", AllocationID: "a", Task: "t", IssuedAt: 1}
	for b.Loop() {
		l.Revoked(c)
	}
}
