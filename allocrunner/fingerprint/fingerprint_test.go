package fingerprint_test

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestNode holds what is measured against what other parts of the system say of this machine.
func TestNode(t *testing.T) {
	dir := t.TempDir()
	n := fingerprint.Node(dir, builtin.Drivers)
	if got := n.NodeResources.Cpu.TotalCpuCores; int(got) != runtime.NumCPU() {
		t.Errorf("%d cores, want %d", got, runtime.NumCPU())
	}
	meminfo := must.Get(os.ReadFile("/proc/meminfo"))(t)
	var kilobytes int64
	must.Get(fmt.Sscanf(string(meminfo), "MemTotal: %d kB", &kilobytes))(t)
	if got := n.NodeResources.Memory.MemoryMB; got != kilobytes>>10 {
		t.Errorf("%d MB of memory, /proc/meminfo has %d", got, kilobytes>>10)
	}
	var fs unix.Statfs_t
	must.OK(t, unix.Statfs(dir, &fs))
	if got, all := n.NodeResources.Disk.DiskMB, int64(fs.Blocks*uint64(fs.Bsize)>>20); got <= 0 || got > all {
		t.Errorf("%d MB of disk are free, of %d", got, all)
	}
	if total := n.Attributes["unique.storage.bytestotal"]; total != strconv.FormatUint(fs.Blocks*uint64(fs.Bsize), 10) {
		t.Errorf("the disk has %s bytes", total)
	}
	hostname, err := os.Hostname()
	if err != nil || n.Name != hostname || n.Attributes["kernel.name"] != "linux" ||
		n.Attributes["cpu.arch"] != runtime.GOARCH {
		t.Errorf("node = %q %v, %v", n.Name, n.Attributes, err)
	}
	driver := n.Drivers["raw_exec"]
	if n.Status != "ready" || n.SchedulingEligibility != "eligible" || driver == nil || !driver.Healthy ||
		!driver.Detected || n.Attributes["driver.raw_exec"] != "1" {
		t.Errorf("node = %+v, driver %+v", n, driver)
	}
	if mhz := n.Attributes["cpu.frequency"]; mhz != "" &&
		n.Attributes["cpu.totalcompute"] != strconv.FormatInt(n.NodeResources.Cpu.CpuShares, 10) {
		t.Errorf("at %s MHz the attributes have %s, the resources %d", mhz, n.Attributes["cpu.totalcompute"],
			n.NodeResources.Cpu.CpuShares)
	}
}

// TestNodeWithoutADisk: what can't be measured is left out.
func TestNodeWithoutADisk(t *testing.T) {
	n := fingerprint.Node("/nonexistent", drivers.NewRegistry())
	if n.NodeResources.Disk.DiskMB != 0 || n.Attributes["unique.storage.volume"] != "" {
		t.Errorf("disk = %+v, %v", n.NodeResources.Disk, n.Attributes)
	}
}

// agents returns a function that returns the metadata of one data directory as another agent has it each time.
func agents(t *testing.T) (newAgent func() fingerprint.Metadata) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cluster")
	return func() fingerprint.Metadata {
		s := disk.New(dir)
		t.Cleanup(func() { s.Close() })
		return fingerprint.Metadata{Store: s, Key: "nodes/n/meta"}
	}
}

func TestMetadata(t *testing.T) {
	newAgent := agents(t)
	m := newAgent()
	if got, err := m.Read(t.Context()); err != nil || len(got) != 0 || got == nil {
		t.Errorf("read before anything is set = %v, %v", got, err)
	}
	must.Get(m.Apply(t.Context(), map[string]*string{"rack": new("r1"), "a.b-c": new("")}))(t)
	got, err := m.Apply(t.Context(), map[string]*string{"rack": nil, "never.there": nil, "zone": new("z")})
	want := map[string]string{"a.b-c": "", "zone": "z"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("apply = %v, %v; want %v", got, err, want)
	}
	if again, err := newAgent().Read(t.Context()); err != nil || !maps.Equal(again, want) {
		t.Errorf("read by another agent = %v, %v; want %v", again, err, want)
	}
}

// TestMetadataIsBounded: what is too much is refused whole, and what is there stays.
func TestMetadataIsBounded(t *testing.T) {
	m := agents(t)()
	must.Get(m.Apply(t.Context(), map[string]*string{"kept": new("yes")}))(t)
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
		"a long value": {map[string]*string{"k": new(strings.Repeat("x", fingerprint.MaxValueBytes+1))},
			"at most 4096 are kept"},
		"many keys":  {many, "that would be 257 keys; at most 256 are kept"},
		"many bytes": {large, "at most 65536 are kept"},
		"a bad one":  {map[string]*string{"good": new("x"), "b@d": new("x")}, "is invalid"},
	} {
		if _, err := m.Apply(t.Context(), c.changes); !errors.Is(err, fingerprint.ErrMetadata) ||
			!strings.Contains(err.Error(), c.want) || len(err.Error()) > 300 {
			t.Errorf("%s: %.400v, want %s", name, err, c.want)
		}
	}
	same.As(t, map[string]string{"kept": "yes"}, must.Get(m.Read(t.Context()))(t), "afterwards there is")
}

// TestDamagedMetadata: an error names the entry.
func TestDamagedMetadata(t *testing.T) {
	m := agents(t)()
	for _, content := range []string{"{", "null", `["a"]`, `{"a":1}`} {
		must.Get(m.Store.Commit(t.Context(),
			cluster.Txn{Then: []cluster.Operation{{Key: m.Key, Value: []byte(content)}}}))(t)
		same.Says(t, nil, m.Key+" holds no JSON object", same.Err(m.Read(t.Context())), content)
	}
}

// TestMetadataOfManyAgents: none loses what another sets at the same time.
func TestMetadataOfManyAgents(t *testing.T) {
	newAgent := agents(t)
	var running sync.WaitGroup
	for i := range 16 {
		running.Go(func() {
			other := newAgent()
			if _, err := other.Apply(t.Context(), map[string]*string{fmt.Sprintf("k%d", i): new("x")}); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	got, err := newAgent().Read(t.Context())
	if content, _ := json.Marshal(got); err != nil || len(got) != 16 {
		t.Errorf("there are %s, %v; want 16", content, err)
	}
}
