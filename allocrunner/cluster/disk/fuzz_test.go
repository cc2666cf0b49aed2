package disk_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/disk"
)

// FuzzLog: whatever bytes a log holds, with a valid header or not, a store returns its entries or an error. A log that
// can be read can be written to, and read again.
func FuzzLog(f *testing.F) {
	dir, before, after := filled(f)
	for _, log := range [][]byte{before, after} {
		f.Add(log, false)
		f.Add(log, true)
		f.Add(append(bytes.Clone(log), log[headerSize:]...), true)
		f.Add(log[:len(log)-3], true)
		for _, at := range []int{16, 18} { // the end that the header notes
			lies := bytes.Clone(log)
			lies[at] ^= 0x80
			f.Add(lies, true)
		}
	}
	f.Fuzz(func(t *testing.T, log []byte, sealed bool) {
		if sealed && len(log) >= headerSize {
			seal(log)
		}
		writeLog(t, dir, log)
		defer os.Remove(dir + "/log.new")
		s := disk.New(dir)
		defer s.Close()
		page, err := s.List(t.Context(), cluster.Span{})
		if err != nil {
			if !errors.Is(err, cluster.ErrUnavailable) || page.Entries != nil {
				t.Fatalf("%+v, %v", page, err)
			}
			return
		}
		for _, e := range page.Entries {
			if e.ModifyIndex == 0 || e.CreateIndex == 0 {
				t.Fatalf("an entry without an index: %+v of index %d", e, page.Index)
			}
		}
		index, err := s.Commit(t.Context(), clustertest.Txn(clustertest.Set("new", "value")))
		if err != nil {
			if !errors.Is(err, cluster.ErrUnavailable) && !errors.Is(err, cluster.ErrFull) {
				t.Fatal(err)
			}
			return
		}
		again := disk.New(dir)
		defer again.Close()
		if e, _, err := again.Get(t.Context(), "new"); err != nil || string(e.Value) != "value" ||
			e.ModifyIndex != index {
			t.Fatalf("%+v, %v after change %d", e, err, index)
		}
	})
}
