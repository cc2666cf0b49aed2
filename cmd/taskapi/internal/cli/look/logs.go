package look

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/wake"
)

type logsOptions struct {
	follow         bool
	tail           int // lines; negative for all
	stdout, stderr bool
	times          bool
	since, pattern string
	out            base.OutputFlags
}

// maxTail bounds the lines, or their positions, that are kept in memory.
const maxTail = 1_000_000

func Logs(w base.Environment) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:        "logs [flags] [ALLOC] [TASK]",
		SuggestFor: []string{"tail", "output"},
		Short:      "Print the output of tasks, also after they have ended",
		Long: `Prints the output of an allocation's tasks, standard output and standard error, in the order of its lines'
times. The log files in the allocation's directory stay as the tasks wrote them.

With several tasks, each line begins with its task's name and | for standard output or ! for standard error. The name of
a job with several allocations means all that run, and GROUP[N]/TASK names their tasks.
Characters that could control a terminal are replaced. With one TASK, its output is copied unchanged, standard error
to standard error, so that it can go into a file.

The time of a line, which --time shows, is when taskapi read its beginning from the task, to a millisecond. Lines of
one millisecond stand task by task, standard output first. Lines that a taskapi of an older version has kept have no
time: they come first, and --since leaves them out.

The allocation may have ended, and no taskapi has to run. With -f, lines come as they are written, also after a restart
of a task or an upgrade of taskapi. A task's logs block says how much is kept (by default 10 files of 10 MB). If output
was removed before logs could read it, a line says which files are missing.

` + base.TaskArgs + `

A template gets each line: .Task .Stream .Line .Time.`,
		Example: `  taskapi logs -f
  taskapi logs -n 20 --stderr hello
  taskapi logs -t --since 10m -g 'error|refused'
  taskapi logs hello greeter > greeter.log`,
		PreRunE: func(_ *cobra.Command, args []string) error {
			if o.times && len(args) > 0 && strings.Contains(args[0], "{{") {
				return base.Usagef("-t is --time: write --template for a template")
			}
			return nil
		},
	}
	var at base.TargetFlags
	at.Add(cmd, w, base.ToReadTasks)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		found, err := at.FindEach(cmd.Context(), args)
		if err != nil {
			return err
		}
		return o.run(cmd.Context(), w, found)
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "print more as it is written, until the allocation ends")
	f.IntVarP(&o.tail, "tail", "n", -1, "begin with the last `N` lines of each stream, of those that are printed")
	f.Lookup("tail").DefValue = "all"
	f.BoolVar(&o.stdout, "stdout", false, "only standard output")
	f.BoolVar(&o.stderr, "stderr", false, "only standard error")
	f.BoolVarP(&o.times, "time", "t", false, "begin each line with its time")
	f.StringVar(&o.since, "since", "", "only lines of the last DURATION, such as 10m, or since a `TIME`, such as 15:04:05")
	f.StringVarP(&o.pattern, "grep", "g", "", "only lines that match a regular expression (RE2 `PATTERN`)")
	base.AddOutputAs(cmd, &o.out, "print each line as a JSON object with task, stream, line and time")
	return cmd
}

// filter says which lines are printed.
type filter struct {
	since    time.Time      // zero for all
	pattern  *regexp.Regexp // nil for all
	timeless atomic.Int64   // lines that were left out because their time is unknown
}

func (o *logsOptions) newFilter(now time.Time) (*filter, error) {
	var f filter
	var err error
	if o.since != "" {
		if f.since, err = output.ParseSince(o.since, now); err != nil {
			return nil, base.Usagef("--since %q: %w", o.since, err)
		}
	}
	if o.pattern != "" {
		if f.pattern, err = regexp.Compile(o.pattern); err != nil {
			return nil, base.Usagef("--grep %q: %w", o.pattern, err)
		}
	}
	return &f, nil
}

// all reports whether every line is printed.
func (f *filter) all() bool { return f.since.IsZero() && f.pattern == nil }

func (f *filter) has(l follow.Line) bool {
	switch {
	case f.pattern != nil && !f.pattern.Match(bytes.TrimSuffix(l.Text, []byte("\n"))):
		return false
	case !f.since.IsZero() && l.Time.IsZero():
		f.timeless.Add(1)
		return false
	}
	return !l.Time.Before(f.since)
}

// run prints the logs of an allocation, of one of its tasks, or of several allocations of a job.
func (o *logsOptions) run(ctx context.Context, w base.Environment, targets []base.Target) error {
	if o.tail > maxTail {
		return base.Usagef("--tail %d is more than %d lines: leave it out for all", o.tail, maxTail)
	}
	only, err := o.newFilter(time.Now())
	if err != nil {
		return err
	}
	l := &logsPrinter{
		logsOptions: o, w: w, files: map[string]interfaces.Files{}, only: only, colors: w.Colors(),
		raw: len(targets) == 1 && targets[0].Task != "" && !o.out.ForPrograms(),
	}
	var tasks []string // those to print
	for _, t := range targets {
		files, err := t.Files()
		if err != nil {
			return err
		}
		prefix := ""
		if len(targets) > 1 {
			prefix = strings.TrimPrefix(t.Alloc.Name, t.Alloc.JobID+".") + "/"
		}
		for _, task := range base.TaskNames(t.Alloc) {
			l.tasks, l.files[prefix+task] = append(l.tasks, prefix+task), labelledFiles{files, prefix}
			if t.Task == "" || t.Task == task {
				tasks = append(tasks, prefix+task)
			}
		}
	}
	kinds := []string{api.FSLogNameStdout, api.FSLogNameStderr}
	if o.stdout != o.stderr {
		kinds = map[bool][]string{true: {api.FSLogNameStdout}, false: {api.FSLogNameStderr}}[o.stdout]
	}
	ctx, release := base.UntilSignal(ctx)
	defer release()
	err = l.print(ctx, targets, follow.StreamsOf(tasks, kinds...))
	if n := only.timeless.Load(); n > 0 && err == nil {
		w.Warnf("%d %s left out, because no time is known of %s", n, base.Plural(int(n), "line is", "lines are"),
			base.Plural(int(n), "it", "them"))
	}
	if errors.Is(err, context.Canceled) { // by a signal
		return nil
	}
	return err
}

// logsPrinter prints streams.
type logsPrinter struct {
	*logsOptions
	w      base.Environment
	files  map[string]interfaces.Files // by tasks
	only   *filter
	colors output.Colors
	tasks  []string // of the allocations
	raw    bool     // as it is, without a prefix

	mu sync.Mutex // held while a line is written, so that lines stay whole
}

// labelledFiles are the files of an allocation whose tasks have a prefix beside those of others.
type labelledFiles struct {
	interfaces.Files
	prefix string
}

func (f labelledFiles) Logs(task, kind string, span interfaces.Span) (interfaces.Frames, error) {
	return f.Files.Logs(strings.TrimPrefix(task, f.prefix), kind, span)
}

func (f labelledFiles) LogTimes(file string) interfaces.LogTimes {
	if clock, ok := f.Files.(interfaces.LogClock); ok {
		return clock.LogTimes(file)
	}
	return nil
}

// print prints the lines that are there, and with --follow those that come.
func (l *logsPrinter) print(ctx context.Context, targets []base.Target, streams []follow.TaskStream) error {
	var readers []*follow.Lines
	there := false
	for _, s := range streams {
		var from interfaces.Span
		at, err := follow.Tail(ctx, l.files[s.Task], s, max(l.tail, 0))
		switch {
		case errors.Is(err, interfaces.ErrNoLogs):
		case err != nil:
			return fmt.Errorf("logs of task %q: %w", s.Task, err)
		default:
			there = true
			if l.tail >= 0 && l.only.all() {
				from = at.Span()
			}
		}
		lines := follow.NewLines(l.files[s.Task], s, from)
		lines.Pieces = l.raw && l.only.all()
		readers = append(readers, lines)
	}
	defer func() {
		for _, r := range readers {
			r.Close()
		}
	}()
	show := l.line
	var last *lastLines
	if l.tail >= 0 && !l.only.all() {
		last = &lastLines{most: l.tail, of: map[follow.TaskStream][]placedLine{}}
		show = last.add
	}
	err := follow.Merge(ctx, readers, !l.follow, func(line follow.Line) error {
		if !l.only.has(line) {
			return nil
		}
		return show(line)
	})
	if err == nil && last != nil {
		err = last.print(l.line)
	}
	switch {
	case err != nil:
		return err
	case l.follow:
		return l.printNew(ctx, targets, readers)
	case !there:
		for _, t := range targets {
			words := "has no output"
			if t.Alloc != nil && t.Alloc.Job != nil && interfaces.IsParent(t.Alloc.Job) {
				words = "runs no task, but its children do: 'taskapi status' lists them"
			}
			fmt.Fprintf(l.w.Stderr, "%s %s\n", t, words)
		}
	}
	return nil
}

// lastLines keeps the last lines of each stream.
type lastLines struct {
	most int
	seen int
	of   map[follow.TaskStream][]placedLine
}

type placedLine struct {
	follow.Line
	at int // its place among the lines of all streams
}

func (k *lastLines) add(line follow.Line) error {
	line.Text = bytes.Clone(line.Text)
	of := append(k.of[line.TaskStream], placedLine{line, k.seen})
	k.seen++
	if len(of) > 2*k.most {
		of = slices.Clone(of[len(of)-k.most:])
	}
	k.of[line.TaskStream] = of
	return nil
}

// print prints the lines in the order in which they were added.
func (k *lastLines) print(line func(follow.Line) error) error {
	var all []placedLine
	for _, of := range k.of {
		all = append(all, of[max(len(of)-k.most, 0):]...)
	}
	slices.SortFunc(all, func(a, b placedLine) int { return a.at - b.at })
	for _, p := range all {
		if err := line(p.Line); err != nil {
			return err
		}
	}
	return nil
}

// logLine is a line as JSON.
type logLine struct {
	Task   string    `json:"task"`
	Stream string    `json:"stream"`
	Line   string    `json:"line"`
	Time   time.Time `json:"time,omitzero"`
}

// timeFormat is that of --time, in the local zone.
const timeFormat = "2006-01-02 15:04:05.000"

func (l *logsPrinter) line(line follow.Line) error {
	text := bytes.TrimSuffix(line.Text, []byte("\n"))
	if l.out.ForPrograms() {
		value := logLine{line.Task, line.Kind, string(text), line.Time.UTC()}
		encoded, err := json.Marshal(value)
		l.mu.Lock()
		defer l.mu.Unlock()
		return errors.Join(err, l.out.Print(l.w, value, encoded, nil))
	}
	at := ""
	if l.times {
		at = fmt.Sprintf("%-*s ", len(timeFormat), "-")
		if !line.Time.IsZero() {
			at = line.Time.Local().Format(timeFormat) + " "
		}
	}
	if l.raw {
		if line.Rest {
			at = ""
		}
		return l.write(line.Kind, append([]byte(at), line.Text...))
	}
	width := 0
	for _, task := range l.tasks {
		width = max(width, len(task))
	}
	name := l.colors.Paint(taskColors[slices.Index(l.tasks, line.Task)%len(taskColors)],
		fmt.Sprintf("%-*s", width, linewriter.OneLine(line.Task)))
	return l.write(api.FSLogNameStdout, fmt.Appendf(nil, "%s%s %s %s\n", l.colors.Paint(output.Dim, at), name,
		follow.MarkOf(line.Kind, l.colors), linewriter.OneLine(string(text))))
}

// taskColors are those of tasks, in turn. Red is for errors.
var taskColors = []output.Color{output.Cyan, output.Green, output.Yellow, output.Magenta, output.Blue}

func (l *logsPrinter) write(kind string, text []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.w.Stdout
	if kind == api.FSLogNameStderr {
		out = l.w.Stderr
	}
	_, err := out.Write(text)
	return err
}

// printNew prints all streams at once until the allocations have ended, or ctx.
func (l *logsPrinter) printNew(ctx context.Context, targets []base.Target, streams []*follow.Lines) error {
	following, end := context.WithCancel(ctx)
	defer end()
	var all sync.WaitGroup
	errs := make([]error, len(streams))
	for i, s := range streams {
		all.Go(func() {
			defer func() {
				if errs[i] != nil { // nobody reads, or a file can't be read: the others end, too
					end()
				}
			}()
			errs[i] = l.followOne(ctx, following, s)
		})
	}
	all.Go(func() {
		defer end()
		for _, t := range targets {
			awaitEnd(following, t)
		}
	})
	all.Wait()
	if err := errors.Join(errs...); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

func (l *logsPrinter) followOne(ctx, following context.Context, s *follow.Lines) error {
	for {
		line, err := s.Next(ctx, following, true)
		rest := false
		if errors.Is(err, io.EOF) {
			if line, rest = s.Rest(); !rest {
				return nil
			}
			err = nil
		}
		if err == nil && l.only.has(line) {
			err = l.line(line)
		}
		if err != nil || rest {
			return err
		}
	}
}

// lookForEnd is how often an allocation without a taskapi is looked at: nothing says when its tasks end.
const lookForEnd = time.Second

// awaitEnd returns when the allocation has ended, also without a taskapi, or ctx has.
func awaitEnd(ctx context.Context, t base.Target) {
	for ctx.Err() == nil {
		f := &follow.Follower{Target: t, Quiet: true}
		_, err := f.Follow(ctx)
		_, abandoned := errors.AsType[*base.AbandonedError](err)
		switch {
		case err == nil, !abandoned && !errors.Is(err, client.ErrNoAnswer):
			return
		case !allocrunner.TasksRunning(t.Layout.Alloc(t.ID)):
			return
		}
		_ = wake.Sleep(ctx, lookForEnd)
	}
}
