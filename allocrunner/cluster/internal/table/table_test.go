package table_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
)

// TestLoad: many changes at once leave a table as the same changes one by one do: those of new keys and of old ones,
// deletions, leases, and several of one key, also in one commit. What a table says of the latest changes is the same,
// or that there is a gap.
func TestLoad(t *testing.T) {
	for _, count := range []int{0, 1, 63, 64, 1000, 3000} {
		random := rand.New(rand.NewPCG(1, uint64(count)))
		one, many := table.New[int](), table.New[int]()
		index := uint64(1)
		for range 3 {
			before := index
			var changes []*table.Change[int]
			for i := range count {
				if i == 0 || random.IntN(3) > 0 {
					index++
				}
				key := fmt.Sprintf("service/%04d%s", random.IntN(1+count/2), strings.Repeat("0", random.IntN(2)))
				if count != 1000 && random.IntN(10) == 0 { // with leases, keys share no beginning
					key = "\x00" + key // a lease
				}
				lease := uint64(random.IntN(3))
				c := table.Change[int]{Index: index, Delete: random.IntN(4) == 0, Entry: table.Entry[int]{
					Meta: table.Meta{Key: key, LeaseIndex: lease, Size: random.IntN(9)}, Value: i}}
				again := c
				one.Load(index, []*table.Change[int]{&c})
				changes = append(changes, &again)
			}
			many.Load(index, changes)
			if got, want := describe(many), describe(one); got != want {
				t.Fatalf("%d changes: got %s, want %s", count, got, want)
			}
			for _, after := range []uint64{before, index - min(index, 500), index - 1} {
				if after < before || count == 0 {
					continue
				}
				got, want := latest(t, many, after), latest(t, one, after)
				if !got.Gap && fmt.Sprint(got) != fmt.Sprint(want) || got.Gap && index-after < 1000 {
					t.Fatalf("%d changes, those after %d of %d: got %v, want %v", count, after, index, got, want)
				}
			}
		}
	}
}

func describe(t *table.Table[int]) string {
	var text strings.Builder
	fmt.Fprint(&text, t.Index, t.Bytes(), t.HasLeases(), t.Len(),
		len(t.Ended(func(uint64) bool { return false })))
	for _, e := range t.Entries() {
		fmt.Fprintf(&text, " %+v", *e)
	}
	return text.String()
}

func latest(t *testing.T, of *table.Table[int], after uint64) cluster.Changes {
	t.Helper()
	looked := false
	changes, err := of.Await(t.Context(), new(sync.Mutex), nil, "", after, func() error {
		if looked {
			return cluster.ErrUnavailable // none: it would wait
		}
		looked = true
		of.WakeAll()
		return nil
	})
	if err != nil {
		return cluster.Changes{Index: of.Index}
	}
	return changes
}
