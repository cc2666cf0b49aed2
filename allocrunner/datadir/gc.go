package datadir

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// GC says which ended allocations are removed without a command, and when. The names are those of Nomad's settings.
type GC struct {
	Interval     time.Duration // between two looks; 0 for no look at all
	MaxAllocs    int           // most allocations of the directory, those that run included
	DiskUsage    float64       // highest use of the file system's space, in percent
	InodeUsage   float64       // highest use of its inodes, in percent
	JobThreshold time.Duration // how long the allocations of a job stay when all of them have ended
}

// DefaultGC returns Nomad's defaults.
func DefaultGC() GC {
	return GC{Interval: time.Minute, MaxAllocs: 50, DiskUsage: 80, InodeUsage: 70, JobThreshold: 4 * time.Hour}
}

const (
	// minEnded is how long an allocation stays after its end, for those who look at it.
	minEnded = 5 * time.Minute
	// nearlyFull is the use of a file system, in percent, above which nothing stays for minEnded.
	nearlyFull = 95
)

// EndedAlloc is an allocation that has ended.
type EndedAlloc struct {
	ID  string
	Job string // with its namespace
	End time.Time
	// Token says that a repeated dispatch must find the allocation: the dispatch had an idempotency token.
	Token bool
}

// Next returns the ID of the ended allocation that is to be removed first, and why; empty for none. live has the job of
// each allocation that has not ended.
func (g GC) Next(ended []EndedAlloc, live []string, disk api.HostDiskStats, now time.Time) (id, why string) {
	ended = slices.Clone(ended)
	slices.SortFunc(ended, func(a, b EndedAlloc) int { return cmp.Or(a.End.Compare(b.End), cmp.Compare(a.ID, b.ID)) })
	jobEnd := map[string]time.Time{}
	for _, e := range ended { // the last one counts
		jobEnd[e.Job] = e.End
	}
	for _, job := range live {
		jobEnd[job] = now
	}
	count := len(ended) + len(live)
	stay := min(minEnded, g.JobThreshold)
	if disk.UsedPercent > max(nearlyFull, g.DiskUsage) || disk.InodesUsedPercent > max(nearlyFull, g.InodeUsage) {
		stay = 0
	}
	for _, e := range ended {
		age := now.Sub(e.End)
		switch {
		case age < stay, e.Token && age < g.JobThreshold:
			continue
		case disk.UsedPercent > g.DiskUsage:
			return e.ID, fmt.Sprintf("%.0f %% of the disk are in use, gc_disk_usage_threshold is %v", disk.UsedPercent,
				g.DiskUsage)
		case disk.InodesUsedPercent > g.InodeUsage:
			return e.ID, fmt.Sprintf("%.0f %% of the inodes are in use, gc_inode_usage_threshold is %v",
				disk.InodesUsedPercent, g.InodeUsage)
		case count > g.MaxAllocs:
			return e.ID, fmt.Sprintf("there are %d allocations, gc_max_allocs is %d", count, g.MaxAllocs)
		case now.Sub(jobEnd[e.Job]) >= g.JobThreshold:
			return e.ID, fmt.Sprintf("its job ended %v ago, job_gc_threshold is %v",
				now.Sub(jobEnd[e.Job]).Round(time.Second), g.JobThreshold)
		}
	}
	return "", ""
}
