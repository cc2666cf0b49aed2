package memory_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/internal/memory"
	"taskapi/internal/must"
)

// program returns how much of this program's file is in its memory, in KiB.
func program(t *testing.T) int {
	t.Helper()
	text := must.Read(t, "/proc/self/smaps")
	self := must.Get(os.Executable())(t)
	total, ours := 0, false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case strings.Contains(fields[0], "-"):
			ours = fields[len(fields)-1] == self
		case ours && fields[0] == "Rss:":
			n := must.Get(strconv.Atoi(fields[1]))(t)
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

// TestSinglePages of the program come back, where the kernel can do that.
func TestSinglePages(t *testing.T) {
	file, ok := memory.OpenTracker()
	if !ok {
		t.Skip("userfaultfd is refused, or this kernel is older than Linux 6.7")
	}
	unix.Close(int(file))
	self := must.Get(os.Open("/proc/self/mem"))(t)
	defer self.Close()
	memory.GiveBack()
	before, read := program(t), 0
	for _, m := range memory.ProgramMappings() {
		for at := m.Start(); at < m.Start()+m.Length(); at += 64 << 10 { // as much as the kernel brings at once
			must.Get(self.ReadAt(make([]byte, 1), int64(at)))(t)
			read++
		}
	}
	if pages := (program(t) - before) / (os.Getpagesize() >> 10); pages > 4*read || read < 16 {
		t.Errorf("%d pages have come for %d that were read", pages, read)
	}
}
