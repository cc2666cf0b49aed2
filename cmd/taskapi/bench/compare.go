package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// compareRounds is how often -compare measures each figure of both programs, unless -rounds says otherwise: the least
// number at which chance calls fewer than one comparison of twenty figures in twenty worse (see worse).
const compareRounds = 9

// A figure is one that two programs are compared by. Less is better.
type figure struct {
	name string
	unit func(float64) string
	old  []float64 // one of each round
	new  []float64
}

// A sample is what one round gives of a figure.
type sample struct {
	name  string
	unit  func(float64) string
	value float64
}

func timeSample(name string, d time.Duration) sample {
	return sample{name, func(v float64) string {
		if d := time.Duration(v); d < time.Millisecond {
			return micros(d)
		}
		return millis(time.Duration(v))
	}, float64(d)}
}

// A contender is one of the two programs, with what its samples use again.
type contender struct {
	env     *environment
	serving *agent // answers, and rests while the other program is measured
	target  target
	group   *agent // its one task sleeps
	data    string
}

// errWorse is the end of a comparison in which a figure got worse.
var errWorse = errors.New("a figure got worse by more than the spread")

// compare measures another program and this one in turn, and prints the figures of both. The other program is a
// revision, which is built first, or a file. Errors: errWorse, after the figures.
func compare(ctx context.Context, w io.Writer, o options) (err error) {
	ours, err := newEnvironment(o.binary)
	if err != nil {
		return err
	}
	defer ours.close()
	file := o.compare
	if _, missing := os.Stat(file); missing != nil {
		if file, err = ours.buildRevision(ctx, o.compare); err != nil {
			return err
		}
	}
	theirs, err := newEnvironment(file)
	if err != nil {
		return err
	}
	defer theirs.close()
	both := [2]*contender{{env: theirs, data: theirs.path(".data")}, {env: ours, data: ours.path(".data")}}
	figures := []*figure{{name: "size of the program", unit: megabytes}}
	for i, c := range both {
		info, err := os.Stat(c.env.binary)
		if err != nil {
			return err
		}
		figures[0].add(i, float64(info.Size()))
	}
	for _, name := range o.names() {
		take, ok := samplers[name]
		if !ok {
			continue
		}
		for round := range o.rounds {
			for turn := range both { // the first of one round is the second of the next
				i := (round + turn) % len(both)
				samples, err := take(both[i], ctx, o)
				if err != nil {
					return fmt.Errorf("measurement %q of %s: %w", name, [2]string{o.compare, o.binary}[i], err)
				}
				for _, s := range samples {
					at := slices.IndexFunc(figures, func(f *figure) bool { return f.name == s.name })
					if at < 0 {
						at = len(figures)
						figures = append(figures, &figure{name: s.name, unit: s.unit})
					}
					figures[at].add(i, s.value)
				}
			}
		}
		if err := errors.Join(both[0].stop(), both[1].stop()); err != nil {
			return err
		}
	}
	return printFigures(w, figures)
}

func (f *figure) add(which int, value float64) {
	if which == 0 {
		f.old = append(f.old, value)
	} else {
		f.new = append(f.new, value)
	}
}

// printFigures prints a row for each figure. Errors: errWorse.
func printFigures(w io.Writer, figures []*figure) (err error) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "figure\told\tnew\tnew over old (spread)\t")
	for _, f := range figures {
		r := f.ratio()
		verdict := ""
		switch {
		case r.min > 1+tolerance:
			verdict, err = "worse", errWorse
		case r.max < 1-tolerance:
			verdict = "better"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%v\t%s\n", f.name, f.unit(median(f.old)), f.unit(median(f.new)), r, verdict)
	}
	return errors.Join(table.Flush(), err)
}

const (
	// tolerance is what no figure has to be exact to.
	tolerance = 0.01
	// chance is how probable it may be that the spread misses the true median on one side.
	chance = 0.005
)

// ratio returns the median of the rounds' ratios of new to old. Its spread is the confidence interval that the order of
// the ratios gives, whatever their distribution is (the sign test; Conover, Practical Nonparametric Statistics, 3.2).
// With fewer than eight rounds it reaches from the least to the greatest, and chance is more probable.
func (f *figure) ratio() ratio {
	each := make([]float64, len(f.new))
	for i := range each {
		each[i] = f.new[i] / f.old[i]
		if f.new[i] == f.old[i] { // both may be 0
			each[i] = 1
		}
	}
	slices.Sort(each)
	skip, tail, n := 0, 0.0, float64(len(each))
	for term := math.Exp2(-n); ; skip++ { // of the binomial distribution
		if tail += term; tail > chance || 2*skip+2 >= len(each) {
			break
		}
		term *= (n - float64(skip)) / float64(skip+1)
	}
	skip = max(skip-1, 0)
	return ratio{median(each), each[skip], each[len(each)-1-skip]}
}

// buildRevision builds the program of a revision as `make build` does, in the environment's folder.
func (env *environment) buildRevision(ctx context.Context, revision string) (string, error) {
	source, archive, binary := env.path(".source"), env.path(".tar"), env.path(".binary")
	for _, args := range [][]string{
		{"git", "archive", "--format=tar", "--output", archive, revision},
		{"mkdir", source},
		{"tar", "-x", "-f", archive, "-C", source},
		{"go", "build", "-C", source, "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/taskapi"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the revision %q: %s: %w\n%s", revision, strings.Join(args, " "), err, out)
		}
	}
	return binary, nil
}

// samplers has, by the name of a measurement, how one round of it is taken of one program.
var samplers = map[string]func(*contender, context.Context, options) ([]sample, error){
	"throughput": (*contender).answers,
	"start":      (*contender).starts,
	"resume":     (*contender).resumes,
	"memory":     (*contender).memory,
	"exec":       (*contender).execs,
	"follow":     (*contender).follows,
}

func (c *contender) answers(ctx context.Context, o options) (all []sample, err error) {
	if c.serving == nil {
		if c.serving, c.target, _, err = c.env.serving(ctx); err != nil {
			return nil, err
		}
	}
	add := func(name string, t target, connections int) error {
		r, err := drive(ctx, t, connections, 0, o)
		if err == nil {
			all = append(all, timeSample("answer, "+name, r.Elapsed/time.Duration(r.Replies)),
				timeSample("answer, "+name+", CPU", r.CPU))
		}
		return err
	}
	for _, n := range connections {
		err = errors.Join(err, add(connectionCount(n), c.target, n))
	}
	differing := c.target
	differing.requests = differ(c.target.requests[0])
	return all, errors.Join(err, add("8, no two heads alike", differing, 8))
}

func (c *contender) starts(ctx context.Context, _ options) ([]sample, error) {
	var all []beginning
	for range startsPerRound {
		b, err := c.env.begin(ctx, c.data)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	of := func(name string, of func(beginning) time.Duration) sample {
		return timeSample("start: "+name, median(collect(all, of)))
	}
	return []sample{
		of("the operator's first 200", func(b beginning) time.Duration { return b.operator }),
		of("the operator's first 200, CPU", func(b beginning) time.Duration { return b.operatorCPU }),
		of("the task's first 200", func(b beginning) time.Duration { return b.task }),
		of("the task's first 200, CPU", func(b beginning) time.Duration { return b.taskCPU }),
	}, nil
}

func (c *contender) resumes(ctx context.Context, _ options) ([]sample, error) {
	_, again, err := resume(ctx, c.env, 1)
	if err != nil {
		return nil, err
	}
	return []sample{timeSample("resume: the operator's first 200", median(again))}, nil
}

func (c *contender) memory(ctx context.Context, o options) (_ []sample, err error) {
	s, err := c.env.group(ctx, c.env.path(".data"), restingTasks)
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	if err := wait(ctx, o.of(rest)); err != nil {
		return nil, err
	}
	_, pss, err := memoryOf(processesWith("exe", c.env.binary))
	return []sample{{"idle memory, PSS", megabytes, float64(pss)}}, err
}

func (c *contender) execs(ctx context.Context, _ options) (_ []sample, err error) {
	if c.group == nil {
		if c.group, err = c.env.group(ctx, c.env.path(".data"), 1); err != nil {
			return nil, err
		}
	}
	var all []time.Duration
	for range execsPerRound {
		began := time.Now()
		if err := c.group.execOnce(ctx); err != nil {
			return nil, err
		}
		all = append(all, time.Since(began))
	}
	return []sample{timeSample("exec of true", median(all))}, nil
}

func (c *contender) follows(ctx context.Context, o options) ([]sample, error) {
	f, err := c.env.follow(ctx, int64(o.seconds*followRate)/followLine*followLine)
	if err != nil {
		return nil, err
	}
	return []sample{
		timeSample("follow: until all is read", f.printed+f.behind),
		timeSample("follow: CPU of the agent", f.cpu),
		timeSample("logs of 1 MB", time.Duration(1e15/f.byLogs)),
	}, nil
}

// stop ends what the samples of a measurement have used.
func (c *contender) stop() (err error) {
	for _, s := range []*agent{c.serving, c.group} {
		if s != nil {
			s.stopInto(&err)
		}
	}
	c.serving, c.group = nil, nil
	return err
}
