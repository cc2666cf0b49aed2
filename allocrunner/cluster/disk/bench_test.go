package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster/clustertest"
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
