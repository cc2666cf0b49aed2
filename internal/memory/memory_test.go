package memory_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"taskapi/internal/memory"
)

// program returns how much of this program's file is in its memory, in KiB.
func program(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	total, ours := 0, false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case strings.Contains(fields[0], "-"):
			ours = fields[len(fields)-1] == self
		case ours && fields[0] == "Rss:":
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			total += n
		}
	}
	return total
}

func TestGiveBack(t *testing.T) {
	before := program(t)
	memory.GiveBack()
	after := program(t)
	if after == 0 || after > before*4/5 {
		t.Errorf("%d KiB of the program are in memory, of %d before; want clearly less, and not nothing: it runs", after,
			before)
	}
	if got := slices.Sorted(slices.Values([]int{3, 1, 2})); !slices.IsSorted(got) {
		t.Error("the program does not work any more")
	}
}
