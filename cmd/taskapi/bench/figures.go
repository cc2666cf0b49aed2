package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// A sample is what one round gives of a figure. Less is better.
type sample struct {
	figure string
	unit   func(float64) string
	value  float64
}

// A way is one of those that a measurement takes in turn: a program, or a way to do the same.
type way struct {
	name string
	take func(context.Context, options) ([]sample, error) // one round
}

// A figure has the values of each way, one a round.
type figure struct {
	name   string
	unit   func(float64) string
	values [][]float64
}

// inTurn takes the ways in turn, because a machine's speed drifts. The first of one round is the last of the next.
func inTurn(ctx context.Context, o options, ways []way) (figures []*figure, err error) {
	for round := range o.rounds {
		for turn := range ways {
			i := (round + turn) % len(ways)
			samples, err := ways[i].take(ctx, o)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", ways[i].name, err)
			}
			for _, s := range samples {
				at := slices.IndexFunc(figures, func(f *figure) bool { return f.name == s.figure })
				if at < 0 {
					at = len(figures)
					figures = append(figures, &figure{s.figure, s.unit, make([][]float64, len(ways))})
				}
				figures[at].values[i] = append(figures[at].values[i], s.value)
			}
		}
	}
	return figures, nil
}

// tolerance is what no figure has to be exact to.
const tolerance = 0.01

// errWorse is the end of a comparison in which a figure got worse.
var errWorse = errors.New("a figure got worse by more than the spread")

// printFigures prints a row for each figure: the medians, and the ratios of the first way to the others. If the figures
// compare two revisions, a row ends with a verdict. Errors: errWorse.
func printFigures(w io.Writer, title string, ways []way, figures []*figure, compare bool) (err error) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s\t", title)
	for _, way := range ways {
		fmt.Fprintf(table, "%s\t", way.name)
	}
	for _, other := range ways[1:] {
		fmt.Fprintf(table, "%s / %s (spread)\t", ways[0].name, other.name)
	}
	fmt.Fprintln(table)
	for _, f := range figures {
		fmt.Fprintf(table, "%s\t", f.name)
		for _, values := range f.values {
			if values == nil { // only some ways have the figure
				fmt.Fprint(table, "\t")
				continue
			}
			fmt.Fprintf(table, "%s\t", f.unit(median(values)))
		}
		for other := 1; other < len(ways); other++ {
			if f.values[0] == nil || f.values[other] == nil {
				fmt.Fprint(table, "\t")
				continue
			}
			r := ratioOf(f.values[0], f.values[other])
			fmt.Fprintf(table, "%v\t", r)
			switch {
			case compare && r.min > 1+tolerance:
				fmt.Fprint(table, "worse\t")
				err = errWorse
			case compare && r.max < 1-tolerance:
				fmt.Fprint(table, "better\t")
			}
		}
		fmt.Fprintln(table)
	}
	fmt.Fprintln(table)
	return errors.Join(table.Flush(), err)
}

type ratio struct{ median, min, max float64 }

func (r ratio) String() string { return fmt.Sprintf("%.2f (%.2f-%.2f)", r.median, r.min, r.max) }

// chance is how probable it may be that the spread misses the true median on one side.
const chance = 0.005

// ratioOf compares what was measured in turn. The spread is the confidence interval of the median that the order of the
// ratios gives, whatever their distribution is (the sign test; Conover, Practical Nonparametric Statistics, 3.2). With
// fewer than eight rounds it reaches from the least ratio to the greatest, and misses the median more often.
func ratioOf(above, below []float64) ratio {
	each := make([]float64, min(len(above), len(below)))
	for i := range each {
		each[i] = above[i] / below[i]
		if above[i] == below[i] { // both may be 0
			each[i] = 1
		}
	}
	slices.Sort(each)
	skip, n := 0, len(each)
	term := math.Exp2(-float64(n)) // of the binomial distribution
	for tail := term; tail <= chance && 2*skip < n; skip++ {
		term *= float64(n-skip) / float64(skip+1)
		tail += term
	}
	skip = max(skip-1, 0)
	return ratio{median(each), each[skip], each[n-1-skip]}
}

// median returns the middle value, or the mean of the middle two.
func median[T float64 | time.Duration](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func timeSample(figure string, d time.Duration) sample { return sample{figure, duration, float64(d)} }

func duration(nanoseconds float64) string {
	if nanoseconds < 1e6 {
		return fmt.Sprintf("%.3g us", nanoseconds/1e3)
	}
	return fmt.Sprintf("%.1f ms", nanoseconds/1e6)
}

func megabytes(n float64) string { return fmt.Sprintf("%.1f MB", n/1e6) }
func percent(n float64) string   { return fmt.Sprintf("%.1f %%", 100*n) }
func times(n float64) string     { return fmt.Sprintf("%.2f x", n) }
