package start

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"taskapi/cmd/taskapi/internal/cli/base"
)

// Lacking counts the requests that were refused because a task's identity lacks a capability. A command names them when
// it ends.
type Lacking struct {
	mu    sync.Mutex // guards the fields below
	total int
	kinds map[string]int // by capability and object
}

// maxLacking is how many kinds are named.
const maxLacking = 10

// Add counts a request for which a capability was missing on an object.
func (l *Lacking) Add(capability, object string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	if l.kinds == nil {
		l.kinds = map[string]int{}
	}
	kind := capability + " on " + base.Clipped(object, base.MaxLastLine)
	if _, known := l.kinds[kind]; known || len(l.kinds) < maxLacking {
		l.kinds[kind]++
	}
}

// Print prints a line about them, if there are any.
func (l *Lacking) Print(out io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total == 0 {
		return
	}
	named := 0
	kinds := slices.SortedFunc(maps.Keys(l.kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.kinds[b], l.kinds[a]), cmp.Compare(a, b))
	})
	for i, kind := range kinds {
		named += l.kinds[kind]
		if len(kinds) > 1 {
			kinds[i] = fmt.Sprintf("%d %s", l.kinds[kind], kind)
		}
	}
	if others := l.total - named; others > 0 {
		kinds = append(kinds, fmt.Sprintf("%d others", others))
	}
	fmt.Fprintf(out, "taskapi: %d refused: %s; see --policy\n", l.total, strings.Join(kinds, ", "))
}
