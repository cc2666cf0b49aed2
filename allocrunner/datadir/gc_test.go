package datadir_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/same"
)

// TestGC removes ended allocations by their number, by the space and by the age of their job, the oldest first, and
// none too early.
func TestGC(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	ended := func(id, job string, ago time.Duration) datadir.EndedAlloc {
		return datadir.EndedAlloc{ID: id, Job: job, End: now.Add(-ago)}
	}
	token := func(e datadir.EndedAlloc) datadir.EndedAlloc {
		e.Token = true
		return e
	}
	young, hour, old := 4*time.Minute, time.Hour, 5*time.Hour
	type all = []datadir.EndedAlloc
	disk := func(percent float64) api.HostDiskStats { return api.HostDiskStats{UsedPercent: percent} }
	inodes := func(percent float64) api.HostDiskStats { return api.HostDiskStats{InodesUsedPercent: percent} }
	three := datadir.GC{MaxAllocs: 3, DiskUsage: 80, InodeUsage: 70, JobThreshold: 4 * time.Hour}
	brief, noLimit := three, three
	brief.JobThreshold, noLimit.DiskUsage, noLimit.InodeUsage = time.Second, 100, 100
	for name, c := range map[string]struct {
		gc    datadir.GC
		ended all
		live  []string
		disk  api.HostDiskStats
		want  string // the IDs in the order of their removal
		why   string // of the first one
	}{
		"nothing": {gc: three},
		"as many as may be": {gc: three, ended: all{ended("a", "j", hour), ended("b", "j", hour)},
			live: []string{"j"}},
		"too many": {gc: three, want: "b", why: "4 allocations, gc_max_allocs is 3",
			ended: all{ended("a", "j", hour), ended("b", "k", 2*hour), ended("c", "l", hour)}, live: []string{"j"}},
		"too many run": {gc: three, ended: all{ended("a", "j", hour), ended("b", "j", young)}, want: "a",
			live: []string{"a", "b", "c", "d"}},
		"an old job": {gc: three, ended: all{ended("a", "j", old), ended("b", "j", old+hour), ended("c", "k", hour)},
			want: "b a", why: "its job ended 5h0m0s ago, job_gc_threshold is 4h0m0s"},
		"an old allocation of a job that has ended lately": {gc: three,
			ended: all{ended("a", "j", old), ended("b", "j", hour)}},
		"an old allocation of a job that runs": {gc: three, ended: all{ended("a", "j", old)}, live: []string{"j"}},
		"an old allocation, and a job with the same ID in another namespace": {gc: three,
			ended: all{ended("a", "default/j", old)}, live: []string{"other/j"}, want: "a"},
		"jobs are to go at once": {gc: brief, ended: all{ended("a", "j", 2*time.Second), ended("b", "k", 0)}, want: "a"},
		"the disk is used":       {gc: three, disk: disk(80), ended: all{ended("a", "j", hour)}},
		"the disk is used too much": {gc: three, disk: disk(81), want: "b a", why: "81 % of the disk",
			ended: all{ended("a", "j", hour), ended("b", "j", 2*hour), ended("c", "j", young)}},
		"the disk is nearly full": {gc: three, disk: disk(96), ended: all{ended("a", "j", 0)}, want: "a"},
		"the disk is nearly full, and may be": {gc: noLimit, disk: disk(100),
			ended: all{ended("a", "j", hour), ended("b", "j", 0)}},
		"the inodes are used too much": {gc: three, disk: inodes(71), want: "a", why: "71 % of the inodes",
			ended: all{ended("a", "j", hour), ended("b", "j", young)}},
		"the inodes are nearly gone": {gc: three, disk: inodes(99), ended: all{ended("a", "j", 0)}, want: "a"},
		"a dispatch that may be repeated": {gc: three, disk: disk(99), want: "c b", ended: all{
			token(ended("a", "j", hour)), token(ended("b", "k", old)), ended("c", "l", old+hour)}, live: []string{"k"}},
		"the clock was set back": {gc: three, disk: disk(90), ended: all{ended("a", "j", -hour)}},
	} {
		left, live := c.ended, c.live
		var removed []string
		for {
			id, why := c.gc.Next(left, live, c.disk, now)
			if id == "" {
				break
			}
			if len(removed) == 0 && !strings.Contains(why, c.why) {
				t.Errorf("%s: the reason is %q, want %q", name, why, c.why)
			}
			removed = append(removed, id)
			left = slices.DeleteFunc(slices.Clone(left), func(e datadir.EndedAlloc) bool { return e.ID == id })
		}
		same.As(t, c.want, strings.Join(removed, " "), name, ": is removed")
	}
}
