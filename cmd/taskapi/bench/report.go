package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// A report is what was measured; parts that were not requested are absent. Durations are in nanoseconds in JSON.
type report struct {
	Throughput []throughputRow `json:",omitempty"`
	Start      *startReport    `json:",omitempty"`
	Memory     *memoryReport   `json:",omitempty"`
	Attack     []besideRow     `json:",omitempty"`
	Neighbours *besideRow      `json:",omitempty"`
	Keeper     []sizeRow       `json:",omitempty"`
	Tasks      []sizeRow       `json:",omitempty"`
	Restart    *restartReport  `json:",omitempty"`
	Idle       []idleRow       `json:",omitempty"`
	Stats      []statsRow      `json:",omitempty"`
	Waits      *waitsReport    `json:",omitempty"`
	Resume     []resumeRow     `json:",omitempty"`
	Exec       *execReport     `json:",omitempty"`
	Follow     *followReport   `json:",omitempty"`
	Shared     *sharedReport   `json:",omitempty"`
	Services   *servicesReport `json:",omitempty"`
}

// A speed is the medians of several rounds.
type speed struct {
	Rate     float64 // replies per second
	P50, P99 time.Duration
}

func speedOf(rounds []load.Result) speed {
	return speed{
		Rate: median(collect(rounds, load.Result.Rate)),
		P50:  median(collect(rounds, func(r load.Result) time.Duration { return r.Percentile(50) })),
		P99:  median(collect(rounds, func(r load.Result) time.Duration { return r.Percentile(99) })),
	}
}

// A ratio is that of two medians, with the least and the greatest ratio within one round.
type ratio struct{ Median, Min, Max float64 }

func (r ratio) String() string { return fmt.Sprintf("%.2f (%.2f-%.2f)", r.Median, r.Min, r.Max) }

// ratioOf compares rounds that were measured in turn.
func ratioOf(above, below []load.Result, of func(load.Result) float64) ratio {
	a, b := collect(above, of), collect(below, of)
	each := make([]float64, len(a))
	for i := range a {
		each[i] = a[i] / b[i]
	}
	return ratio{Median: median(a) / median(b), Min: slices.Min(each), Max: slices.Max(each)}
}

// A spread is the median of several measurements between the least and the greatest.
type spread struct{ Median, Min, Max time.Duration }

func spreadOf(all []time.Duration) spread {
	return spread{Median: median(all), Min: slices.Min(all), Max: slices.Max(all)}
}

func (s spread) String() string {
	return fmt.Sprintf("%s (%s-%s)", millis(s.Median), millis(s.Min), millis(s.Max))
}

// A figure is the median of several measurements between the least and the greatest.
type figure struct{ Median, Min, Max float64 }

func figureOf(all []float64) figure {
	return figure{Median: median(all), Min: slices.Min(all), Max: slices.Max(all)}
}

// in returns the figure in a unit of so much, with so many decimals.
func (f figure) in(unit string, size float64, decimals int) string {
	text := func(v float64) string { return strconv.FormatFloat(v/size, 'f', decimals, 64) }
	return fmt.Sprintf("%s %s (%s-%s)", text(f.Median), unit, text(f.Min), text(f.Max))
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
func micros(d time.Duration) string { return fmt.Sprintf("%.0f us", float64(d)/1e3) }
func megabytes(n int64) string      { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

func (r *report) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if r.Throughput != nil {
		fmt.Fprintln(t, "authenticated GET checks\tfloor/s\ttaskapi/s\tratio (spread)\tfloor p50\tp99\ttaskapi p50\tp99")
		for _, row := range r.Throughput {
			fmt.Fprintf(t, "%d connection(s)\t%.0f\t%.0f\t%v\t%s\t%s\t%s\t%s\n", row.Connections, row.Floor.Rate, row.Ours.Rate, row.Ratio,
				micros(row.Floor.P50), micros(row.Floor.P99), micros(row.Ours.P50), micros(row.Ours.P99))
		}
		fmt.Fprintln(t)
	}
	if s := r.Start; s != nil {
		fmt.Fprintln(t, "from exec to\tmedian (spread)")
		fmt.Fprintf(t, "a bare server's first 200\t%v\n", s.Floor)
		fmt.Fprintf(t, "the operator's first 200\t%v\n", s.Operator)
		fmt.Fprintf(t, "the task's main function\t%v\n", s.TaskMain)
		fmt.Fprintf(t, "the task's first 200\t%v\n", s.Task)
		fmt.Fprintf(t, "the same, with a new key ring\t%s\n\n", millis(s.Fresh))
	}
	if m := r.Memory; m != nil {
		fmt.Fprintln(t, "idle memory\tprocesses\tRSS\tPSS")
		fmt.Fprintf(t, "bare server\t%d\t%s\t%s\n", m.Floor.Processes, megabytes(m.Floor.RSS), megabytes(m.Floor.PSS))
		fmt.Fprintf(t, "taskapi, keeper included\t%d\t%s\t%s\n\n", m.Ours.Processes, megabytes(m.Ours.RSS), megabytes(m.Ours.PSS))
	}
	if r.Attack != nil {
		fmt.Fprintln(t, "2 good beside 8 hostile\talone/s\tattacked/s\trate kept (spread)\tp99 alone\tattacked\tp99 grown (spread)\thostile/s\tstatuses")
		for _, row := range r.Attack {
			row.print(t)
		}
		fmt.Fprintln(t)
	}
	if n := r.Neighbours; n != nil {
		fmt.Fprintf(t, "a neighbour of %d busy callers\talone/s\tbeside/s\trate kept (spread)\tp99 alone\tbeside\tp99 grown (spread)\tbusy/s\tstatuses\n", busyCallers)
		n.print(t)
		fmt.Fprintln(t)
	}
	r.printTasks(t)
	return t.Flush()
}

// printTasks prints what was measured of groups of tasks.
func (r *report) printTasks(w io.Writer) {
	if r.Keeper != nil {
		printSizes(w, "few tasks", r.Keeper)
	}
	if r.Tasks != nil {
		printSizes(w, "many tasks", r.Tasks)
	}
	if r.Restart != nil {
		r.Restart.print(w)
	}
	if r.Idle != nil {
		printIdle(w, r.Idle)
	}
	if r.Stats != nil {
		printStats(w, r.Stats)
	}
	if r.Waits != nil {
		r.Waits.print(w)
	}
	if r.Resume != nil {
		printResume(w, r.Resume)
	}
	if r.Exec != nil {
		r.Exec.print(w)
	}
	if r.Follow != nil {
		r.Follow.print(w)
	}
	if r.Shared != nil {
		r.Shared.print(w)
	}
	if r.Services != nil {
		r.Services.print(w)
	}
}

// statuses lists what share of the replies had which status.
func statuses(counts map[int]int) string {
	total := 0
	for _, n := range counts {
		total += n
	}
	var list []string
	for _, status := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, fmt.Sprintf("%d: %.1f%%", status, 100*float64(counts[status])/float64(total)))
	}
	return strings.Join(list, ", ")
}
