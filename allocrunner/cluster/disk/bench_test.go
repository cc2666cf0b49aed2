package disk_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
)

const benchValue = 1000 // bytes

// BenchmarkWrite is the floor of BenchmarkPut: one write, and one sync.
func BenchmarkWrite(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "file"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	value, at := make([]byte, benchValue), int64(0)
	for b.Loop() {
		_, err := f.WriteAt(value, at)
		if err := errors.Join(err, unix.Fdatasync(int(f.Fd()))); err != nil {
			b.Fatal(err)
		}
		at += benchValue
	}
}

func BenchmarkPut(b *testing.B) {
	s := open(b, scratch(b))
	for b.Loop() {
		clustertest.Put(b, s, "k", strings.Repeat("v", benchValue))
	}
}

// BenchmarkGet reads what another opening of the store has just written, which the reader does not know yet.
func BenchmarkGet(b *testing.B) {
	dir := scratch(b)
	s, other := open(b, dir), open(b, dir)
	for b.Loop() {
		b.StopTimer()
		clustertest.Put(b, s, "k", strings.Repeat("v", benchValue))
		b.StartTimer()
		clustertest.Get(b, other, "k")
	}
}

// BenchmarkOpen opens a store of 10,000 entries, and reads one of them. The entries were written by 100 commits, in
// their order or in any.
func BenchmarkOpen(b *testing.B) {
	const count, each = 10_000, 100
	for name, shuffled := range map[string]bool{"ordered": false, "shuffled": true} {
		b.Run(name, func(b *testing.B) {
			dir := scratch(b)
			s := disk.New(dir)
			keys := make([]int, count)
			for i := range keys {
				keys[i] = i
			}
			if shuffled {
				keys = rand.New(rand.NewPCG(1, 2)).Perm(count)
			}
			for chunk := range slices.Chunk(keys, each) {
				var txn cluster.Txn
				for _, k := range chunk {
					txn.Then = append(txn.Then,
						clustertest.Set(fmt.Sprintf("service/default/web/%08d", k), strings.Repeat("v", 200)))
				}
				clustertest.Commit(b, s, txn)
			}
			s.Close()
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a process that starts collects none yet
			used := int64(0)
			for b.Loop() {
				b.StopTimer()
				runtime.GC()
				before := processorTime(b)
				b.StartTimer()
				s := disk.New(dir)
				clustertest.Get(b, s, "service/default/web/00005000")
				s.Close()
				used += processorTime(b) - before
			}
			b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
		})
	}
}

func processorTime(b *testing.B) int64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}
