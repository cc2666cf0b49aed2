package auth

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// mostLacking is how many kinds of requests that lacked a capability are remembered of a task, the latest.
const mostLacking = 16

// Refusal is what is remembered of one kind of refused requests on a task's socket.
//
// Where the caller is known, a kind is a route and the capabilities that the caller lacked. Otherwise a kind is a
// reason, and nothing of the request is remembered.
type Refusal struct {
	Time       time.Time // of the latest request
	Count      uint64
	Reason     string // as in the audit log
	Method     string `json:",omitempty"`
	Path       string `json:",omitempty"` // of the latest request, as in the audit log
	Capability string `json:",omitempty"`

	route string // the pattern of Path
}

// String says in words what was refused, and how often.
func (r Refusal) String() string {
	text := "reason: " + r.Reason
	switch r.Capability {
	case "":
	case OperatorOnly.String():
		text = fmt.Sprintf("%s %s is for the operator alone", r.Method, r.Path)
	default:
		text = fmt.Sprintf("%s %s needs %s, which the policy does not give", r.Method, r.Path, r.Capability)
	}
	if r.Count > 1 {
		text += fmt.Sprintf(" (%d times)", r.Count)
	}
	return text
}

// is reports whether two refusals are of one kind.
func (r Refusal) is(other Refusal) bool {
	return r.Reason == other.Reason && r.Method == other.Method && r.route == other.route &&
		r.Capability == other.Capability
}

// Refusals remembers the latest refusals on the sockets of tasks, in memory alone. What it remembers of a task is
// bounded: other kinds than those that lacked a capability are as few as there are reasons. The zero value is ready, a
// nil one remembers nothing, and all methods are safe for any number of goroutines.
type Refusals struct {
	mu    sync.Mutex
	tasks map[string][]Refusal // the latest last
}

// Lacked remembers a request whose caller lacks each of the capabilities. path is escaped, and route is its pattern.
func (l *Refusals) Lacked(owner Owner, method, route, path string, anyOf CapabilitySet) {
	l.add(owner, Refusal{
		Reason: MissingCapability.String(), Method: method, Path: clean(hideTokensInPath(path), maxPathBytes),
		Capability: anyOf.AnyOf(), route: route,
	})
}

// add counts a refusal. Those on the operator's socket are the audit log's alone.
func (l *Refusals) add(owner Owner, r Refusal) {
	if l == nil || owner.Task == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tasks == nil {
		l.tasks = map[string][]Refusal{}
	}
	all := l.tasks[owner.Task]
	oldest, lacking := -1, 0 // of the kinds that lacked a capability
	for i, known := range slices.Backward(all) {
		if known.Capability != "" {
			oldest, lacking = i, lacking+1
		}
	}
	if i := slices.IndexFunc(all, r.is); i >= 0 {
		r.Count = all[i].Count
		all = slices.Delete(all, i, i+1)
	} else if r.Capability != "" && lacking == mostLacking {
		all = slices.Delete(all, oldest, oldest+1)
	}
	r.Time, r.Count = time.Now(), r.Count+1
	l.tasks[owner.Task] = append(all, r)
}

// All returns what is remembered, by task; the latest is last.
func (l *Refusals) All() map[string][]Refusal {
	all := map[string][]Refusal{}
	if l == nil {
		return all
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for task, kinds := range l.tasks {
		all[task] = slices.Clone(kinds)
	}
	return all
}
