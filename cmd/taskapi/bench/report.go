package main

import (
	"fmt"
	"slices"
	"time"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// A speed is the medians of several rounds.
type speed struct {
	rate     float64 // replies per second
	p50, p99 time.Duration
	cpu      time.Duration // of the server, for each reply
}

func speedOf(rounds []load.Result) speed {
	return speed{
		rate: median(collect(rounds, load.Result.Rate)),
		cpu:  median(collect(rounds, cpuOf)),
		p50:  median(collect(rounds, func(r load.Result) time.Duration { return r.Percentile(50) })),
		p99:  median(collect(rounds, func(r load.Result) time.Duration { return r.Percentile(99) })),
	}
}

func cpuOf(r load.Result) time.Duration { return r.CPU }

// A ratio is that of two medians, with the least and the greatest ratio within one round.
type ratio struct{ median, min, max float64 }

func (r ratio) String() string { return fmt.Sprintf("%.2f (%.2f-%.2f)", r.median, r.min, r.max) }

// ratioOf compares what was measured in turn.
func ratioOf[T float64 | time.Duration](above, below []T) ratio {
	each := make([]float64, len(above))
	for i := range above {
		each[i] = float64(above[i]) / float64(below[i])
	}
	return ratio{float64(median(above)) / float64(median(below)), slices.Min(each), slices.Max(each)}
}

// spread returns the median of several times, with the least and the greatest.
func spread(all []time.Duration) string {
	return fmt.Sprintf("%s (%s-%s)", millis(median(all)), millis(slices.Min(all)), millis(slices.Max(all)))
}

// collect returns what each round gives.
func collect[R, T any](rounds []R, of func(R) T) []T {
	all := make([]T, len(rounds))
	for i, round := range rounds {
		all[i] = of(round)
	}
	return all
}

// median returns the middle value, or the mean of the middle two.
func median[T float64 | time.Duration](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }
func micros(d time.Duration) string { return fmt.Sprintf("%.3g us", float64(d)/1e3) }
func megabytes(n float64) string    { return fmt.Sprintf("%.1f MB", n/1e6) }
