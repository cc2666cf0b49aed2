package proc_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// TestUsage holds what is read of a process against what the kernel says of it elsewhere.
func TestUsage(t *testing.T) {
	before := must.Get(proc.Read(os.Getpid()))(t)
	// memory that the heap has not had before
	page := must.Get(unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE))(t)
	defer unix.Munmap(page)
	for i := range page {
		page[i] = byte(i)
	}
	must.OK(t, exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").Run())
	after := must.Get(proc.Read(os.Getpid()))(t)
	if after.RSS < before.RSS+48<<20 || after.RSS < uint64(len(page)) {
		t.Errorf("RSS went from %d to %d with %d more", before.RSS, after.RSS, len(page))
	}
	if after.Children.Since(before.Children).Sum() == 0 {
		t.Error("a busy child that was waited for has used no time")
	}
	if after.Threads < 2 || after.CPU.Sum() < before.CPU.Sum() {
		t.Errorf("before %+v, after %+v", before, after)
	}
	var children unix.Rusage
	must.OK(t, unix.Getrusage(unix.RUSAGE_CHILDREN, &children))
	want := time.Duration(children.Utime.Nano() + children.Stime.Nano())
	if (after.Children.Sum() - want).Abs() > 30*time.Millisecond {
		t.Errorf("children's time = %v, want %v", after.Children.Sum(), want)
	}
	if age := after.Age(proc.UptimeTicks()); age <= 0 || age > time.Hour {
		t.Errorf("this process is %v old", age)
	}
}
