// Package claims keeps the claims of a data directory's allocations on things such as the instances of a device, CPU
// cores, and volumes with one writer. No two holders have an exclusive claim on the same thing at a time.
//
// A holder is an allocation, by its ID. Its claims count while a process has the holder's lock, which the allocation's
// keeper has as well as its agent, or while any process of the allocation is left. So a dead allocation loses a claim
// only when another allocation needs the thing. Until then the next process of the dead allocation finds its claims
// unchanged.
package claims

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/internal/flock"
	"taskapi/internal/privatefile"
)

// Claim is one thing that a holder has.
type Claim struct {
	Kind   string `json:"kind"` // of the thing, such as "device"
	Name   string `json:"name"` // of the thing, unique in its kind; an absolute path includes all paths below it
	Shared bool   `json:"shared,omitempty"`
	For    string `json:"for,omitempty"` // the task that has the thing; empty for the whole allocation

	Holder string `json:"-"`
}

// conflicts reports whether two holders can't have these claims together.
func (c Claim) conflicts(d Claim) bool {
	return c.Kind == d.Kind && (within(c.Name, d.Name) || within(d.Name, c.Name)) && (!c.Shared || !d.Shared)
}

// within reports whether a thing is another one, or a path below it.
func within(name, other string) bool {
	if name == other || !filepath.IsAbs(name) || !filepath.IsAbs(other) {
		return name == other
	}
	rel, err := filepath.Rel(other, name)
	return err == nil && filepath.IsLocal(rel)
}

// HeldError means that other holders have a thing.
type HeldError struct {
	Claim   Claim
	Holders []string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s %q is held by allocation %s", e.Claim.Kind, e.Claim.Name, strings.Join(e.Holders, " and "))
}

// ErrInvalid means that a holder has no usable name.
var ErrInvalid = errors.New("invalid holder")

// Table is the claims of a data directory.
type Table struct {
	Dir  string                   // made if it is missing
	Left func(holder string) bool // reports whether a process of the holder is left; nil for no
}

// Holder has claims until its table forgets them. Its methods may be called by several goroutines.
type Holder struct {
	table Table
	name  string
	file  *os.File // its lock is the holder's
}

const (
	tableLock  = "lock"
	lockSuffix = ".holder"
	listSuffix = ".json"

	// maxList is more bytes than any allocation's claims have.
	maxList = 4 << 20
)

// Hold returns a holder with the claims that it had, if nobody else has taken them. Several processes may hold one
// holder. Errors: ErrInvalid, those of the file system.
func (t Table) Hold(name string) (_ *Holder, err error) {
	if strings.HasPrefix(name, ".") || !filepath.IsLocal(name) || filepath.Base(name) != name {
		return nil, fmt.Errorf("%w: %q is no file's name", ErrInvalid, name)
	}
	unlock, err := t.lock()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	f, err := privatefile.Open(t.path(name, lockSuffix), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	if err := flock.Lock(int(f.Fd()), unix.LOCK_SH, 0); err != nil { // a search for holders needs the table's lock
		return nil, errors.Join(fmt.Errorf("claims: lock %s: %w", f.Name(), err), f.Close())
	}
	return &Holder{table: t, name: name, file: f}, nil
}

// Files returns the file that another process keeps open to hold the claims without this one.
func (h *Holder) Files() []*os.File { return []*os.File{h.file} }

// Claim adds a claim to the holder's claims, unless the holder has the claim already. Errors: *HeldError.
func (h *Holder) Claim(c Claim) error {
	c.Holder = h.name
	return h.Change(func(own, _ []Claim) ([]Claim, error) {
		if slices.Contains(own, c) {
			return own, nil
		}
		return append(own, c), nil
	})
}

// Change replaces the holder's claims by the claims that choose returns. choose gets the claims of the holder and of
// all other holders, and no claim can change meanwhile. If choose returns an error, nothing changes. A damaged list of
// the holder counts as empty. Errors: *HeldError.
func (h *Holder) Change(choose func(own, others []Claim) ([]Claim, error)) (err error) {
	unlock, err := h.table.lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	own, damaged := h.table.read(h.name)
	others, dead, err := h.table.others(h.name)
	if err != nil {
		return err
	}
	wanted, err := choose(slices.Clone(own), others)
	if err != nil {
		return err
	}
	for _, c := range wanted {
		e := &HeldError{Claim: c}
		for _, o := range others {
			if c.conflicts(o) && !slices.Contains(e.Holders, o.Holder) {
				e.Holders = append(e.Holders, o.Holder)
			}
		}
		if len(e.Holders) > 0 {
			return e
		}
	}
	for name, had := range dead { // first, so that a full disk leaves no thing with two holders
		kept := slices.DeleteFunc(slices.Clone(had), func(d Claim) bool {
			return slices.ContainsFunc(wanted, func(c Claim) bool { return c.conflicts(d) })
		})
		if len(kept) < len(had) {
			if err := h.table.write(name, kept); err != nil {
				return err
			}
		}
	}
	if damaged == nil && same(own, wanted) { // a full disk does not matter then
		return nil
	}
	return h.table.write(h.name, wanted)
}

// same reports whether two lists are the same claims of one holder.
func same(a, b []Claim) bool {
	return slices.EqualFunc(a, b, func(c, d Claim) bool { c.Holder = d.Holder; return c == d })
}

// Close ends this process's hold. The claims stay for others who hold the holder, and for the next one.
func (h *Holder) Close() error { return h.file.Close() }

// Forget ends the claims of an allocation that has ended.
func (t Table) Forget(name string) (err error) {
	if _, err := os.Lstat(t.path(name, lockSuffix)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := t.lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	for _, suffix := range []string{listSuffix, lockSuffix} {
		if failed := os.Remove(t.path(name, suffix)); !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// List returns the claims that count, by holder. It makes nothing.
func (t Table) List() (_ []Claim, err error) {
	if _, err := os.Lstat(t.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	unlock, err := t.lock()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	held, _, err := t.others("")
	return held, err
}

func (t Table) path(name, suffix string) string { return filepath.Join(t.Dir, name+suffix) }

func (t Table) lock() (unlock func() error, err error) {
	if err := privatefile.EnsureDir(t.Dir); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	l, err := privatefile.Acquire(filepath.Join(t.Dir, tableLock))
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	return l.Release, nil
}

// others returns the claims of all holders but one: held are the claims that count, and dead, by holder, the claims
// that count no more.
func (t Table) others(self string) (held []Claim, dead map[string][]Claim, err error) {
	entries, err := os.ReadDir(t.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("claims: %w", err)
	}
	dead = map[string][]Claim{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), listSuffix)
		if !ok || name == self {
			continue
		}
		list, failed := t.read(name)
		alive, err := t.alive(name)
		switch {
		case err != nil:
			return nil, nil, err
		case alive && failed != nil:
			return nil, nil, failed
		case alive:
			held = append(held, list...)
		default: // a damaged list of nobody means nothing
			dead[name] = list
		}
	}
	return held, dead, nil
}

// alive reports whether the claims of a holder count.
func (t Table) alive(name string) (bool, error) {
	f, err := privatefile.Open(t.path(name, lockSuffix), os.O_RDWR)
	if err == nil {
		err = flock.Lock(int(f.Fd()), unix.LOCK_EX, 0)
		_ = f.Close() // nothing was written
	}
	switch {
	case errors.Is(err, flock.ErrLocked):
		return true, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("claims: %w", err)
	}
	return t.Left != nil && t.Left(name), nil
}

// read returns the claims of a holder; none if there is no list.
func (t Table) read(name string) ([]Claim, error) {
	path := t.path(name, listSuffix)
	text, _, err := privatefile.Read(path, maxList)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []Claim
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err = d.Decode(&list)
	}
	if err != nil {
		return nil, fmt.Errorf("the claims of allocation %s in %s can't be read: %w; stop that allocation, or remove the "+
			"file, and others may take what the allocation has", name, path, err)
	}
	for i := range list {
		list[i].Holder = name
	}
	return list, nil
}

func (t Table) write(name string, list []Claim) error {
	text, err := json.Marshal(list)
	if err == nil {
		err = privatefile.Write(t.path(name, listSuffix), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("save claims: %w", err)
	}
	return nil
}
