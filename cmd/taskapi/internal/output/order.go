package output

import (
	"cmp"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// CompareAllocs orders allocations in a list: those that run before those that have ended, and then the newest first.
// Those of which nothing is known are nil, and last.
func CompareAllocs(a, b *api.Allocation) int {
	aRank, aCreated := position(a)
	bRank, bCreated := position(b)
	return cmp.Or(aRank-bRank, cmp.Compare(bCreated, aCreated))
}

func position(alloc *api.Allocation) (rank int, created int64) {
	switch {
	case alloc == nil:
		return 2, 0
	case interfaces.Ended(alloc):
		return 1, alloc.CreateTime
	}
	return 0, alloc.CreateTime
}
