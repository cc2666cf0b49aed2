package start

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"taskapi/auth"
	"taskapi/cmd/taskapi/internal/cli/base"
)

// mostNamed is how many kinds of refused requests a line names.
const mostNamed = 10

// PrintRefused prints a line about the requests of tasks that lacked a capability, if there are any. A command does so
// when it ends.
func PrintRefused(out io.Writer, refusals *auth.Refusals) {
	kinds, total := map[string]uint64{}, uint64(0) // by capability and object
	for _, all := range refusals.All() {
		for _, r := range all {
			if r.Capability != "" {
				object := base.Clipped(strings.TrimPrefix(r.Path, "/v1/var/"), base.MaxLastLine)
				kinds[r.Capability+" on "+object] += r.Count
				total += r.Count
			}
		}
	}
	if total == 0 {
		return
	}
	names := slices.SortedFunc(maps.Keys(kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(kinds[b], kinds[a]), cmp.Compare(a, b))
	})
	others := total
	names = names[:min(len(names), mostNamed)]
	for i, name := range names {
		others -= kinds[name]
		if len(kinds) > 1 {
			names[i] = fmt.Sprintf("%d %s", kinds[name], name)
		}
	}
	if others > 0 {
		names = append(names, fmt.Sprintf("%d others", others))
	}
	fmt.Fprintf(out, "taskapi: %d refused: %s; see --policy\n", total, strings.Join(names, ", "))
}
