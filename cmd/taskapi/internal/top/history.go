package top

import (
	"math"
	"math/bits"
	"time"
)

const (
	bucketTime  = 5 * time.Second
	bucketCount = 60 // five minutes
)

// history is what something has used over the last minutes: the most of each time of bucketTime, by the clock, so that
// bars that were drawn once stay as they are.
type history struct {
	last int64 // number of the latest bucket
	used [bucketCount]sample
}

type sample struct {
	known  bool
	cpu    float64 // percent of one processor
	memory uint64  // bytes
}

// add adds what is used now. A clock that is set back changes the latest bucket.
func (h *history) add(now time.Time, cpu float64, memory uint64) {
	bucket := max(now.UnixNano()/int64(bucketTime), h.last)
	for n := max(h.last+1, bucket-bucketCount+1); n <= bucket; n++ {
		h.used[n%bucketCount] = sample{}
	}
	h.last = bucket
	s := &h.used[bucket%bucketCount]
	*s = sample{true, max(s.cpu, cpu), max(s.memory, memory)}
}

// latest returns the last n buckets before now, the oldest first.
func (h *history) latest(now time.Time, n int) []sample {
	all := make([]sample, 0, n)
	current := now.UnixNano() / int64(bucketTime)
	for b := current - int64(n) + 1; b <= current; b++ {
		s := sample{}
		if b <= h.last && b > h.last-bucketCount && b >= 0 {
			s = h.used[b%bucketCount]
		}
		all = append(all, s)
	}
	return all
}

// bars are the characters of a line of bars, from the lowest to the highest.
var (
	bars      = []rune("▁▂▃▄▅▆▇█")
	asciiBars = []rune("_.-=+*%#")
)

// The least tops of the scales: less than that is next to nothing.
const (
	leastCPU    = 10
	leastMemory = 1 << 20
)

// cpuBars draws the use of CPU over the last minutes, width bars wide; nothing without a history. The highest bar is a
// round number, so that the scale changes seldom.
func (h *history) cpuBars(now time.Time, width int, with []rune) string {
	samples := h.samples(now, width)
	most := 0.0
	for _, s := range samples {
		most = max(most, s.cpu)
	}
	scale := float64(leastCPU)
	for step := 0; scale < most; step++ { // 10, 20, 50, 100 ...
		scale *= []float64{2, 2.5, 2}[step%3]
	}
	return draw(samples, with, func(s sample) float64 { return s.cpu / scale })
}

// memoryBars is cpuBars for the memory.
func (h *history) memoryBars(now time.Time, width int, with []rune) string {
	samples := h.samples(now, width)
	most := uint64(leastMemory)
	for _, s := range samples {
		most = max(most, s.memory)
	}
	scale := float64(uint64(1) << min(bits.Len64(most), 63))
	return draw(samples, with, func(s sample) float64 { return float64(s.memory) / scale })
}

func (h *history) samples(now time.Time, width int) []sample {
	if h == nil || width <= 0 {
		return nil
	}
	return h.latest(now, min(width, bucketCount))
}

// draw draws a bar for each sample; share is its height, of 1.
func draw(samples []sample, with []rune, share func(sample) float64) string {
	line := make([]rune, len(samples))
	for i, s := range samples {
		line[i] = ' '
		if s.known {
			line[i] = with[min(max(int(math.Ceil(share(s)*float64(len(with))))-1, 0), len(with)-1)]
		}
	}
	return string(line)
}
