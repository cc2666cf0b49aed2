package disk_test

import (
	"fmt"
	"os"
	"testing"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/internal/must"
)

// TestLogOfFormat1 reads a log that an earlier version of taskapi has written before its machine failed. The log was
// rewritten with a damaged value and a lease in it. Then it got a change that its header notes, a whole one that the
// header does not note, and two thirds of another one.
func TestLogOfFormat1(t *testing.T) {
	data := must.Read(t, "testdata/format1.log")
	dir := scratch(t)
	must.OK(t, os.Mkdir(dir, 0o700))
	writeLog(t, dir, data)
	s := open(t, dir)
	page := clustertest.List(t, s, cluster.Span{})
	want := []cluster.Entry{
		{Key: "bad", CreateIndex: 2, ModifyIndex: 2, Damaged: true},
		{Key: "new", Value: []byte("four"), CreateIndex: 6, ModifyIndex: 7},
		{Key: "old", Value: []byte("two"), CreateIndex: 2, ModifyIndex: 3},
	}
	if fmt.Sprint(page.Entries) != fmt.Sprint(want) || page.Index < 7 { // the end of the lease is a change, too
		t.Errorf("got %v at %d, want %v at 7 or 8", page.Entries, page.Index, want)
	}
	if index := clustertest.Put(t, s, "new", "five", cluster.Condition{Key: "new", ModifyIndex: 7}); index < 8 {
		t.Errorf("the next change has index %d", index)
	}
	if e := clustertest.Get(t, open(t, dir), "new"); string(e.Value) != "five" {
		t.Errorf("got %q", e.Value)
	}
}
