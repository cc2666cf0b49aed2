package look

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
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
)

// logsOptions are the flags of taskapi logs.
type logsOptions struct {
	follow         bool
	tail           int // lines; negative for all
	stdout, stderr bool
	out            base.OutputFlags
}

// maxTail bounds the lines whose positions are kept in memory.
const maxTail = 1_000_000

func Logs(w base.Environment) *cobra.Command {
	var o logsOptions
	cmd := base.OnTarget(w, base.ToReadTasks, &cobra.Command{
		Use:   "logs [flags] [ALLOC] [TASK]",
		Short: "Print the output of tasks, also after they have ended",
		Long: `Prints the output of an allocation's tasks from the log files in its directory.

With several tasks, each line begins with its task's name and | for standard output or ! for standard error.
Characters that could control a terminal are replaced. With one TASK, its output is copied unchanged, standard error
to standard error, so that it can go into a file.

The allocation may have ended, and no taskapi has to run. Without -f, a task's standard output comes before its
standard error, since log files keep no times. With -f, lines come as they are written, also after a restart of a task
or an upgrade of taskapi. A task's logs block says how much is kept (by default 10 files of 10 MB). If output was
removed before logs could read it, a line says which files are missing.

` + base.TaskArgs + `

A template gets each line: .Task .Stream .Line.`,
		Example: `  taskapi logs -f
  taskapi logs --tail 20 --stderr hello
  taskapi logs hello greeter > greeter.log`,
	}, func(ctx context.Context, found base.Target) error { return o.run(ctx, w, found) })
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "print more as it is written, until the allocation ends")
	f.IntVarP(&o.tail, "tail", "n", -1, "begin with the last `N` lines of each stream")
	f.Lookup("tail").DefValue = "all"
	f.BoolVar(&o.stdout, "stdout", false, "only standard output")
	f.BoolVar(&o.stderr, "stderr", false, "only standard error")
	base.AddOutputAs(cmd, &o.out, "print each line as a JSON object with task, stream and line")
	return cmd
}

func (o *logsOptions) run(ctx context.Context, w base.Environment, t base.Target) error {
	if o.tail > maxTail {
		return base.Usagef("--tail %d is more than %d lines: leave it out for all", o.tail, maxTail)
	}
	files, err := t.Files()
	if err != nil {
		return err
	}
	tasks := base.TaskNames(t.Alloc)
	if t.Task != "" {
		tasks = []string{t.Task}
	}
	kinds := []string{api.FSLogNameStdout, api.FSLogNameStderr}
	if o.stdout != o.stderr {
		kinds = map[bool][]string{true: {api.FSLogNameStdout}, false: {api.FSLogNameStderr}}[o.stdout]
	}
	l := &logsPrinter{
		files: files, out: w.Stdout, err: w.Stderr,
		colors: w.Colors(), tasks: base.TaskNames(t.Alloc), raw: t.Task != "" && !o.out.ForPrograms(), format: &o.out, w: w,
	}
	ctx, release := base.UntilSignal(ctx)
	defer release()
	streams := follow.StreamsOf(tasks, kinds...)
	begins, err := o.begins(ctx, l.files, streams)
	if err == nil && o.follow {
		err = l.follow(ctx, t, streams, begins)
	} else if err == nil {
		err = l.printAll(ctx, t, streams, begins)
	}
	if errors.Is(err, context.Canceled) { // by a signal
		return nil
	}
	return err
}

// printAll prints the streams one after the other.
func (l *logsPrinter) printAll(ctx context.Context, t base.Target, streams []follow.TaskStream,
	begins []interfaces.Span) error {
	printed := false
	for i, s := range streams {
		err := l.print(ctx, ctx, s, begins[i])
		if err != nil && !errors.Is(err, interfaces.ErrNoLogs) {
			return err
		}
		printed = printed || err == nil
	}
	if !printed {
		fmt.Fprintf(l.err, "%s has no output\n", t)
	}
	return nil
}

// begins returns where each stream begins.
func (o *logsOptions) begins(ctx context.Context, files interfaces.Files, streams []follow.TaskStream) (
	[]interfaces.Span, error) {
	spans := make([]interfaces.Span, len(streams))
	for i, s := range streams {
		if o.tail < 0 {
			continue
		}
		begin, err := follow.Tail(ctx, files, s, o.tail)
		if err != nil && !errors.Is(err, interfaces.ErrNoLogs) {
			return nil, fmt.Errorf("logs of task %q: %w", s.Task, err)
		}
		spans[i] = begin.Span()
	}
	return spans, nil
}

// logsPrinter prints streams.
type logsPrinter struct {
	files    interfaces.Files
	out, err io.Writer
	colors   output.Colors
	tasks    []string // of the allocation
	raw      bool     // as it is, without a prefix
	format   *base.OutputFlags
	w        base.Environment

	mu sync.Mutex // held while a line is written, so that lines stay whole
}

// logLine is a line as JSON.
type logLine struct {
	Task   string `json:"task"`
	Stream string `json:"stream"`
	Line   string `json:"line"`
}

// print prints a stream from a position to its end or, if it is followed, to its end when following ends.
func (l *logsPrinter) print(ctx, following context.Context, s follow.TaskStream, span interfaces.Span) error {
	frames, err := l.files.Logs(s.Task, s.Kind, span)
	if err != nil {
		return err
	}
	defer frames.Close()
	lines := follow.LineSplitter{Print: func(line []byte) error { return l.line(s, line) }}
	err = follow.CopyFrames(ctx, following, frames, func(f *api.StreamFrame) error {
		if l.raw {
			return l.write(s, f.Data)
		}
		return lines.Add(f.Data)
	})
	return errors.Join(err, lines.End())
}

func (l *logsPrinter) line(s follow.TaskStream, line []byte) error {
	if l.format.ForPrograms() {
		value := logLine{s.Task, s.Kind, string(line)}
		text, err := json.Marshal(value)
		l.mu.Lock()
		defer l.mu.Unlock()
		return errors.Join(err, l.format.Print(l.w, value, text, nil))
	}
	width := 0
	for _, task := range l.tasks {
		width = max(width, len(task))
	}
	name := l.colors.Paint(taskColors[slices.Index(l.tasks, s.Task)%len(taskColors)],
		fmt.Sprintf("%-*s", width, linewriter.OneLine(s.Task)))
	return l.write(follow.TaskStream{Task: s.Task, Kind: api.FSLogNameStdout}, fmt.Appendf(nil, "%s %s %s\n", name,
		follow.MarkOf(s.Kind, l.colors), linewriter.OneLine(string(line))))
}

// taskColors are those of tasks, in turn. Red is for errors.
var taskColors = []output.Color{output.Cyan, output.Green, output.Yellow, output.Magenta, output.Blue}

func (l *logsPrinter) write(s follow.TaskStream, text []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.out
	if s.Kind == api.FSLogNameStderr {
		out = l.err
	}
	_, err := out.Write(text)
	return err
}

// follow prints all streams at once until the allocation has ended, or ctx.
func (l *logsPrinter) follow(ctx context.Context, t base.Target, streams []follow.TaskStream,
	begins []interfaces.Span) error {
	following, end := context.WithCancel(ctx)
	defer end()
	var all sync.WaitGroup
	errs := make([]error, len(streams))
	for i, s := range streams {
		span := begins[i]
		span.Follow, span.Await = true, true
		all.Go(func() {
			defer func() {
				if errs[i] != nil { // nobody reads, or a file can't be read: the others end, too
					end()
				}
			}()
			errs[i] = l.print(ctx, following, s, span)
		})
	}
	all.Go(func() {
		defer end()
		awaitEnd(following, t)
	})
	all.Wait()
	if err := errors.Join(errs...); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
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
		select {
		case <-ctx.Done():
		case <-time.After(lookForEnd):
		}
	}
}
