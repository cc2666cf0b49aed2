package variables

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/wake"
)

// MaxItems is how many bytes the keys and values of a variable's items have together, as in Nomad.
const MaxItems = 64 << 10

// Put writes a variable. With check, it writes only if the variable's ModifyIndex is that number, 0 for no variable.
// While the variable is locked, v must have the lock's ID. Put returns the variable as written, and the index. Errors:
// *ConflictError, ErrFull.
func (s *Service) Put(ctx context.Context, v *api.Variable, check *uint64) (*api.Variable, uint64, error) {
	at := place{v.Namespace, v.Path}
	if err := checkPut(v); err != nil {
		return nil, 0, err
	}
	sealed, err := s.seal(at, v.Items)
	if err != nil {
		return nil, 0, err
	}
	return s.change(ctx, at, func(found state, _ Moment) (write, error) {
		if err := s.expects(found, check); err != nil {
			return write{}, err
		}
		if err := found.lets(v.LockID()); err != nil {
			return write{}, err
		}
		return write{record: found.next(sealed, s.writer), items: v.Items}, nil
	})
}

// Delete deletes a variable, if there is one, and returns the index. With check, it deletes only if the variable's
// ModifyIndex is that number, 0 for no variable. A locked variable can't be deleted. Errors: *ConflictError.
func (s *Service) Delete(ctx context.Context, namespace, path string, check *uint64) (uint64, error) {
	if err := checkNamespace(namespace); err != nil {
		return 0, err
	}
	if CheckPath(path) != nil { // as in Nomad, an impossible path has no variable
		_, index, err := s.store.Get(ctx, usageKey)
		return index, err
	}
	_, index, err := s.change(ctx, place{namespace, path}, func(found state, _ Moment) (write, error) {
		if err := s.expects(found, check); err != nil || !found.exists() {
			return write{keep: true}, err
		}
		return write{remove: true}, found.lets("")
	})
	return index, err
}

// checkPut returns an error for a variable that can't be written.
func checkPut(v *api.Variable) error {
	if err := checkNamespace(v.Namespace); err != nil {
		return err
	}
	if len(v.Items) == 0 {
		return invalid("empty variables are invalid")
	}
	if v.Lock != nil && (v.Lock.TTL != "" || v.Lock.LockDelay != "") {
		return invalid("variable should not contain lock definition")
	}
	if err := checkItems(v.Items); err != nil {
		return err
	}
	return CheckPath(v.Path)
}

func checkItems(items map[string]string) error {
	size := 0
	for key, value := range items {
		size += len(key) + len(value)
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return invalid("item %q is no UTF-8 text: encode it, such as with base64", key)
		}
	}
	if size > MaxItems {
		return invalid("variables are limited to 64KiB in total size")
	}
	return nil
}

// seal returns sealed items.
func (s *Service) seal(at place, items map[string]string) ([]byte, error) {
	if items == nil {
		items = map[string]string{}
	}
	plain, err := json.Marshal(items)
	if err != nil {
		return nil, err
	}
	return s.sealer.Seal(plain, at.String())
}

// expects returns a *ConflictError when the variable's index is not the expected one; nil expects nothing.
func (s *Service) expects(found state, check *uint64) error {
	if check == nil || *check == found.entry.ModifyIndex {
		return nil
	}
	if !found.exists() {
		return &ConflictError{Variable: found.nothing()}
	}
	items, _ := s.items(found) // a damaged variable is a conflict, too
	return &ConflictError{Variable: found.variable(items)}
}

// lets returns a *ConflictError unless a caller with this lock ID, empty for none, may change the variable. The ID of a
// lock that has ended is refused, too: somebody else may have held the lock since.
func (s state) lets(lockID string) error {
	if s.locked() == (lockID != "") && (!s.locked() || s.heldBy(lockID)) {
		return nil
	}
	return &ConflictError{Variable: s.nothing(), Locked: true}
}

// nothing returns the variable for a conflict that shows only namespace and path.
func (s state) nothing() *api.Variable {
	return &api.Variable{Namespace: s.at.namespace, Path: s.at.path}
}

// next returns the record after this one. It keeps a held lock.
func (s state) next(sealed []byte, writer string) record {
	now := time.Now().UnixNano()
	r := record{header{Version: recordVersion, CreateTime: s.CreateTime, ModifyTime: now, Writer: writer}, sealed}
	if r.CreateTime == 0 {
		r.CreateTime = now
	}
	if s.locked() {
		r.Lock = s.Lock
	}
	return r
}

// write is the effect of a change on a state.
type write struct {
	keep   bool // nothing is written
	renew  bool // only the time of the lock starts again
	remove bool
	record record
	items  map[string]string // of the answer
	lease  *lease            // a new lease of the lock; nil: it stays as it is
}

// change applies decide to the state of a place, and again whenever somebody else was faster. It returns the variable
// as written, nil when there is none, and the variable's index. Errors: those of decide, ErrFull.
func (s *Service) change(
	ctx context.Context, at place, decide func(found state, now Moment) (write, error),
) (*api.Variable, uint64, error) {
	for retry := (wake.Backoff{First: time.Millisecond, Last: 64 * time.Millisecond}); ; {
		found, err := s.look(ctx, at)
		if err != nil {
			return nil, 0, err
		}
		now, err := s.clock()
		if err != nil {
			return nil, 0, err
		}
		w, err := decide(found, now)
		if err != nil {
			s.begin(ctx, found, now)
			return nil, 0, err
		}
		index := found.index
		switch {
		case w.keep:
			return nil, index, nil
		case w.renew:
			err = s.renew(ctx, found, now)
		default:
			index, err = s.commit(ctx, found, w)
		}
		switch {
		case cluster.IsConflict(err): // the pause keeps many writers from delaying one another
			if err := retry.Sleep(ctx); err != nil {
				return nil, 0, err
			}
		case err != nil:
			return nil, 0, err
		case w.renew:
			return found.variable(nil), found.entry.ModifyIndex, nil
		case w.remove:
			return nil, index, nil
		default:
			return found.written(w, index), index, nil
		}
	}
}

// begin starts a lock's time again when its lease was written before the last start of the machine. When that fails,
// the next caller does it.
func (s *Service) begin(ctx context.Context, found state, now Moment) {
	if found.phase == unknown {
		_ = s.renew(ctx, found, now)
	}
}

// renew starts a lock's time again, unless something has changed since the state was read.
func (s *Service) renew(ctx context.Context, found state, now Moment) error {
	operation := cluster.Operation{Key: found.at.leaseKey(), Value: newLease(found.Lock.ID, now).encode()}
	_, err := s.store.Commit(ctx, cluster.Txn{If: found.conditions(), Then: []cluster.Operation{operation}})
	return err
}

// conditions returns conditions that hold until somebody changes the state.
func (s state) conditions() []cluster.Condition {
	all := []cluster.Condition{{Key: s.at.key(), ModifyIndex: s.entry.ModifyIndex}}
	if s.Lock != nil {
		all = append(all, cluster.Condition{Key: s.at.leaseKey(), ModifyIndex: s.leased.ModifyIndex})
	}
	return all
}

// written returns the variable after a write.
func (s state) written(w write, index uint64) *api.Variable {
	s.record, s.phase = w.record, free
	if s.Lock != nil {
		s.phase = held
	}
	if !s.exists() {
		s.entry.CreateIndex = index
	}
	s.entry.ModifyIndex = index
	return s.variable(w.items)
}

// commit writes a change of a state.
func (s *Service) commit(ctx context.Context, found state, w write) (uint64, error) {
	variable := cluster.Operation{Key: found.at.key(), Delete: w.remove}
	if !w.remove {
		variable.Value = w.record.encode()
	}
	txn := cluster.Txn{If: found.conditions(), Then: []cluster.Operation{variable}}
	switch {
	case w.lease != nil:
		txn.Then = append(txn.Then, cluster.Operation{Key: found.at.leaseKey(), Value: w.lease.encode()})
	case w.remove || w.record.Lock == nil: // an expired lock may have left one
		txn.Then = append(txn.Then, cluster.Operation{Key: found.at.leaseKey(), Delete: true})
	}
	if err := s.account(ctx, &txn, found, w.record.Writer, len(variable.Value), w.remove); err != nil {
		return 0, err
	}
	return s.store.Commit(ctx, txn)
}

// The bounds of all variables of a store together.
const (
	MaxVariables = 10_000
	MaxBytes     = 32 << 20
	// usageUnit: sizes are rounded up to a multiple of it, so that a change of some bytes does not change the usage.
	usageUnit = 1 << 10
)

// usage is the room that variables take. It is written in the transaction that changes it.
type usage struct {
	Variables int `json:"variables"`
	Bytes     int `json:"bytes"` // of the stored values, each rounded up to usageUnit
}

// reserve is the room that tasks leave to the operator. share is how much of the rest the tasks of one job can fill.
var (
	reserve = usage{MaxVariables / 4, MaxBytes / 4}
	share   = usage{MaxVariables / 8, MaxBytes / 8}
)

func units(bytes int) int { return (bytes + usageUnit - 1) / usageUnit * usageUnit }

// account adds the change of the usage to a transaction: of all variables, and of the jobs whose shares change. Errors:
// ErrFull, never for a change that makes a variable smaller.
func (s *Service) account(
	ctx context.Context, txn *cluster.Txn, found state, writer string, after int, removed bool,
) error {
	was, is := usage{}, usage{}
	if found.exists() {
		was = usage{1, units(len(found.entry.Value))}
	}
	if !removed {
		is = usage{1, units(after)}
	}
	changes := map[string]usage{found.Writer: usage{}.less(was)}
	changes[writer] = usage{changes[writer].Variables + is.Variables, changes[writer].Bytes + is.Bytes}
	changes[""] = is.less(was) // of all variables
	for _, writer := range slices.Sorted(maps.Keys(changes)) {
		most := share
		if writer == "" {
			most = s.bounds
		}
		if err := s.add(ctx, txn, found, writer, changes[writer], most); err != nil {
			return err
		}
	}
	return nil
}

func (u usage) less(other usage) usage {
	return usage{u.Variables - other.Variables, u.Bytes - other.Bytes}
}

// add adds the change of a writer's usage to a transaction; an empty writer stands for all.
func (s *Service) add(ctx context.Context, txn *cluster.Txn, found state, writer string, change, most usage) error {
	if change == (usage{}) {
		return nil
	}
	key := usageKey
	if writer != "" {
		key += "/" + writer
	}
	entry, _, err := s.store.Get(ctx, key)
	if err != nil {
		return err
	}
	var total usage
	// The size of a damaged entry is not known.
	if entry.ModifyIndex != 0 && json.Unmarshal(entry.Value, &total) != nil || found.entry.Damaged {
		if total, err = s.count(ctx, writer); err != nil {
			return err
		}
	}
	total.Variables, total.Bytes = max(0, total.Variables+change.Variables), max(0, total.Bytes+change.Bytes)
	if change.Variables > 0 && total.Variables > most.Variables || change.Bytes > 0 && total.Bytes > most.Bytes {
		return s.full(writer, most)
	}
	value, err := json.Marshal(total)
	if err != nil {
		return err
	}
	txn.If = append(txn.If, cluster.Condition{Key: key, ModifyIndex: entry.ModifyIndex})
	operation := cluster.Operation{Key: key, Value: value}
	if writer != "" && total == (usage{}) {
		operation = cluster.Operation{Key: key, Delete: true}
	}
	txn.Then = append(txn.Then, operation)
	return nil
}

// full returns ErrFull, with the limits in its text.
func (s *Service) full(writer string, most usage) error {
	bound := fmt.Sprintf("%d variables and %d MiB", most.Variables, most.Bytes>>20)
	switch {
	case writer != "":
		return fmt.Errorf("%w: the tasks of this job have written %s, which is the share of a job", ErrFull, bound)
	case s.writer != "":
		return fmt.Errorf("%w: tasks can write while there are less than %s, and the rest is the operator's", ErrFull,
			bound)
	}
	return fmt.Errorf("%w: %s", ErrFull, bound)
}

// count counts the variables of a writer, for a usage that is damaged. An empty writer stands for all.
func (s *Service) count(ctx context.Context, writer string) (usage, error) {
	page, err := s.store.List(ctx, cluster.Span{Prefix: variablePrefix})
	var total usage
	for _, entry := range page.Entries {
		if r, _ := decodeRecord(entry.Value); writer == "" || r.Writer == writer {
			total.Variables++
			total.Bytes += units(len(entry.Value))
		}
	}
	return total, err
}
