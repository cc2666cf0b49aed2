package fingerprint_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/fingerprint"
)

// TestNode holds what is measured against what other parts of the system say of this machine.
func TestNode(t *testing.T) {
	dir := t.TempDir()
	n := fingerprint.Node(dir, builtin.Drivers)
	if got := n.NodeResources.Cpu.TotalCpuCores; int(got) != runtime.NumCPU() {
		t.Errorf("%d cores, want %d", got, runtime.NumCPU())
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var kilobytes int64
	if _, err := fmt.Sscanf(string(meminfo), "MemTotal: %d kB", &kilobytes); err != nil {
		t.Fatal(err)
	}
	if got := n.NodeResources.Memory.MemoryMB; got != kilobytes>>10 {
		t.Errorf("%d MB of memory, /proc/meminfo has %d", got, kilobytes>>10)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if got, all := n.NodeResources.Disk.DiskMB, int64(fs.Blocks*uint64(fs.Bsize)>>20); got <= 0 || got > all {
		t.Errorf("%d MB of disk are free, of %d", got, all)
	}
	if total := n.Attributes["unique.storage.bytestotal"]; total != strconv.FormatUint(fs.Blocks*uint64(fs.Bsize), 10) {
		t.Errorf("the disk has %s bytes", total)
	}
	hostname, err := os.Hostname()
	if err != nil || n.Name != hostname || n.Attributes["kernel.name"] != "linux" || n.Attributes["cpu.arch"] != runtime.GOARCH {
		t.Errorf("node = %q %v, %v", n.Name, n.Attributes, err)
	}
	driver := n.Drivers["raw_exec"]
	if n.Status != "ready" || n.SchedulingEligibility != "eligible" || driver == nil || !driver.Healthy || !driver.Detected || n.Attributes["driver.raw_exec"] != "1" {
		t.Errorf("node = %+v, driver %+v", n, driver)
	}
	if mhz := n.Attributes["cpu.frequency"]; mhz != "" && n.Attributes["cpu.totalcompute"] != strconv.FormatInt(n.NodeResources.Cpu.CpuShares, 10) {
		t.Errorf("at %s MHz the attributes have %s, the resources %d", mhz, n.Attributes["cpu.totalcompute"], n.NodeResources.Cpu.CpuShares)
	}
}

// TestNodeWithoutADisk: what can't be measured is left out.
func TestNodeWithoutADisk(t *testing.T) {
	n := fingerprint.Node("/nonexistent", drivers.NewRegistry())
	if n.NodeResources.Disk.DiskMB != 0 || n.Attributes["unique.storage.volume"] != "" {
		t.Errorf("disk = %+v, %v", n.NodeResources.Disk, n.Attributes)
	}
}

func newMetadata(t *testing.T) fingerprint.Metadata {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return fingerprint.Metadata{Store: storeAt(t, dir), Key: "nodes/n/meta", Earlier: filepath.Join(dir, "node-metadata.json")}
}

func storeAt(t *testing.T, dir string) cluster.Store {
	t.Helper()
	s := disk.New(filepath.Join(dir, "cluster"))
	t.Cleanup(func() { s.Close() })
	return s
}

// another is the metadata as another agent has it.
func another(t *testing.T, m fingerprint.Metadata) fingerprint.Metadata {
	t.Helper()
	m.Store = storeAt(t, filepath.Dir(m.Earlier))
	return m
}

func TestMetadata(t *testing.T) {
	m := newMetadata(t)
	if got, err := m.Read(t.Context()); err != nil || len(got) != 0 || got == nil {
		t.Errorf("read before anything is set = %v, %v", got, err)
	}
	if _, err := m.Apply(t.Context(), map[string]*string{"rack": new("r1"), "a.b-c": new("")}); err != nil {
		t.Fatal(err)
	}
	got, err := m.Apply(t.Context(), map[string]*string{"rack": nil, "never.there": nil, "zone": new("z")})
	want := map[string]string{"a.b-c": "", "zone": "z"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("apply = %v, %v; want %v", got, err, want)
	}
	if again, err := another(t, m).Read(t.Context()); err != nil || !maps.Equal(again, want) {
		t.Errorf("read by another agent = %v, %v; want %v", again, err, want)
	}
}

// TestMetadataIsBounded: what is too much is refused whole, and what is there stays.
func TestMetadataIsBounded(t *testing.T) {
	m := newMetadata(t)
	if _, err := m.Apply(t.Context(), map[string]*string{"kept": new("yes")}); err != nil {
		t.Fatal(err)
	}
	many := map[string]*string{}
	for i := range fingerprint.MaxKeys {
		many[fmt.Sprintf("k%d", i)] = new("")
	}
	large := map[string]*string{}
	for i := range fingerprint.MaxBytes/fingerprint.MaxValueBytes + 1 {
		large[fmt.Sprintf("k%d", i)] = new(strings.Repeat("x", fingerprint.MaxValueBytes))
	}
	for name, c := range map[string]struct {
		changes map[string]*string
		want    string
	}{
		"nothing":        {nil, "missing required Meta object"},
		"an empty key":   {map[string]*string{"": new("x")}, "must not be empty"},
		"a bad key":      {map[string]*string{"a b": new("x")}, `"a b" is invalid`},
		"a dot too many": {map[string]*string{"a..b": nil}, `"a..b" is invalid`},
		"a long key":     {map[string]*string{strings.Repeat("k", 1<<20): nil}, "at most 128 are kept"},
		"a long value":   {map[string]*string{"k": new(strings.Repeat("x", fingerprint.MaxValueBytes+1))}, "at most 4096 are kept"},
		"many keys":      {many, "that would be 257 keys; at most 256 are kept"},
		"many bytes":     {large, "at most 65536 are kept"},
		"a bad one":      {map[string]*string{"good": new("x"), "b@d": new("x")}, "is invalid"},
	} {
		if _, err := m.Apply(t.Context(), c.changes); !errors.Is(err, fingerprint.ErrMetadata) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 300 {
			t.Errorf("%s: %.400v, want %s", name, err, c.want)
		}
	}
	if got, err := m.Read(t.Context()); err != nil || !maps.Equal(got, map[string]string{"kept": "yes"}) {
		t.Errorf("afterwards there is %v, %v", got, err)
	}
}

// TestMetadataOfEarlierVersions: the file that they kept it in is read once, and goes; what is in the store counts from then on.
func TestMetadataOfEarlierVersions(t *testing.T) {
	m := newMetadata(t)
	earlier := func(content string) {
		if err := os.WriteFile(m.Earlier, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	earlier(`{"rack":"r1"}`)
	earlierLock := m.Earlier + ".lock"
	if err := os.WriteFile(earlierLock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := m.Apply(t.Context(), map[string]*string{"zone": new("z")})
	if want := map[string]string{"rack": "r1", "zone": "z"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, path := range []string{m.Earlier, earlierLock} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := m.Apply(t.Context(), map[string]*string{"rack": nil, "zone": nil}); err != nil {
		t.Fatal(err)
	}
	earlier(`{"rack":"r1"}`)
	if got, err := m.Read(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("what was removed is back: %v, %v", got, err)
	}
}

// TestMetadataFile: one of an earlier version that was damaged, or that others can write, is an error that names it.
func TestMetadataFile(t *testing.T) {
	m := newMetadata(t)
	for content, want := range map[string]string{"{": "no JSON object", "null": "no JSON object", `["a"]`: "no JSON object", `{"a":1}`: "no JSON object"} {
		if err := os.WriteFile(m.Earlier, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Read(t.Context()); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), m.Earlier) {
			t.Errorf("%q: %v, want %s", content, err, want)
		}
	}
	if err := os.WriteFile(m.Earlier, []byte(`{"a":"b"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(m.Earlier, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Read(t.Context()); err == nil {
		t.Error("a file that everybody can write was read")
	}
}

// TestMetadataOfManyAgents: none loses what another sets at the same time.
func TestMetadataOfManyAgents(t *testing.T) {
	m := newMetadata(t)
	var agents sync.WaitGroup
	for i := range 16 {
		agents.Go(func() {
			other := another(t, m)
			if _, err := other.Apply(t.Context(), map[string]*string{fmt.Sprintf("k%d", i): new("x")}); err != nil {
				t.Error(err)
			}
		})
	}
	agents.Wait()
	got, err := m.Read(t.Context())
	if content, _ := json.Marshal(got); err != nil || len(got) != 16 {
		t.Errorf("there are %s, %v; want 16", content, err)
	}
}
