package proc_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/internal/must"
	"taskapi/internal/proc"
	"taskapi/internal/same"
)

func TestMounts(t *testing.T) {
	const text = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 /docker/abc /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
50 23 8:1 / /a\040b rw - ext4 /dev/sda1 rw
garbage
`
	want := []proc.Mount{
		{"0:28", "/", "/sys/fs/cgroup", "tmpfs", "tmpfs", "rw,mode=755"},
		{"0:29", "/", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cgroup", "rw,cpu,cpuacct"},
		{"0:38", "/docker/abc", "/sys/fs/cgroup/unified", "cgroup2", "cgroup2", "rw"},
		{"8:1", "/", "/a b", "ext4", "/dev/sda1", "rw"},
	}
	got := proc.ParseMounts(text)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct{ controller, cgroup, mounted, below string }{
		{"cpuacct", "/x/y", "/sys/fs/cgroup/cpu,cpuacct", "x/y"},
		{"memory", "/x", "", ""},
		{"", "/docker/abc", "/sys/fs/cgroup/unified", ""},
		{"", "/docker/abc/t", "/sys/fs/cgroup/unified", "t"},
		{"", "/docker/abcd", "", ""},
	} {
		if mounted, below := proc.FindCgroup(got, c.controller, c.cgroup); mounted != c.mounted || below != c.below {
			t.Errorf("%q %s is at %q, %q", c.controller, c.cgroup, mounted, below)
		}
	}
	if !slices.ContainsFunc(proc.Mounts(), func(m proc.Mount) bool { return m.Type == "proc" }) {
		t.Error("no /proc is mounted")
	}
}

func TestFilesOfNumbers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(path, []byte("a 1\nb x\n c 3\nVmSwap:\t 12 kB\nVmSwap: 13 kB\n"), 0o600))
	if got, err := proc.Numbers(path); err != nil || len(got) != 2 || got["a"] != 1 || got["c"] != 3 {
		t.Errorf("numbers = %v, %v", got, err)
	}
	if got := proc.Bytes(proc.Value(path, "VmSwap")); got != 12<<10 {
		t.Errorf("VmSwap = %d", got)
	}
	same.As(t, "", proc.Value(path+"x", "VmSwap"), "a file that is not there has")
	if _, err := proc.Number(path); err == nil || !strings.Contains(err.Error(), "invalid syntax") {
		t.Errorf("it holds one number: %v", err)
	}
}
