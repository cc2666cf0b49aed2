package cli

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

// outputFlag is whether the tasks' output is printed among the events: by default where a person reads them.
type outputFlag struct{ logs, noLogs bool }

func (o *outputFlag) add(f *pflag.FlagSet) {
	f.BoolVar(&o.logs, "logs", false, "print what the tasks print, also where standard output is no terminal")
	f.BoolVar(&o.noLogs, "no-logs", false, "print events alone, also on a terminal")
}

func (o outputFlag) check() error {
	if o.logs && o.noLogs {
		return usage(fmt.Errorf("--logs and --no-logs exclude each other: give one"))
	}
	return nil
}

func (o outputFlag) wanted(w Environment, asJSON bool) bool {
	return o.logs || !o.noLogs && !asJSON && output.IsTerminal(w.Stdout)
}

// taskOutput prints what tasks print, as it comes, among the events of their allocation. A reader who is slow has it wait, and no task: the
// files are behind it.
type taskOutput struct {
	printer *printer
	files   interfaces.Files
	streams []taskStream

	mu        sync.Mutex // guards the fields below
	begins    map[taskStream]position
	following map[taskStream]bool
	ctx       context.Context // of the present life; nil before the first stream
	stop, end func()          // at once; and when everything is printed that is there
	ended     context.Context
	readers   sync.WaitGroup
}

// newTaskOutput returns one that prints the output of the allocation's tasks from now on, when it is told to begin.
func newTaskOutput(p *printer, l layout, alloc *api.Allocation) *taskOutput {
	o := &taskOutput{
		printer: p, files: allocrunner.Files(l.Alloc(alloc.ID), alloc.GetTaskGroup()), begins: map[taskStream]position{},
		streams: streamsOf(taskNames(alloc), api.FSLogNameStdout, api.FSLogNameStderr),
	}
	for _, s := range o.streams {
		if at, err := tail(context.Background(), o.files, s, 0); err == nil {
			o.begins[s] = at
		}
	}
	return o
}

// beginAll begins with the tasks whose log files were there.
func (o *taskOutput) beginAll() {
	for _, s := range o.streams {
		o.mu.Lock()
		_, there := o.begins[s]
		o.mu.Unlock()
		if there {
			o.begin(s)
		}
	}
}

// started begins with a task that has started. Its log files are there by now.
func (o *taskOutput) started(task string) {
	if o == nil {
		return
	}
	for _, s := range o.streams {
		if s.task == task {
			o.begin(s)
		}
	}
}

func (o *taskOutput) begin(s taskStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.following[s] {
		return
	}
	if o.ctx == nil {
		o.ctx, o.stop = context.WithCancel(context.Background())
		o.ended, o.end = context.WithCancel(o.ctx)
		o.following = map[taskStream]bool{}
	}
	span := o.begins[s].span()
	span.Follow, span.Await = true, true
	frames, err := o.files.Logs(s.task, s.kind, span)
	if err != nil { // a task whose logs are disabled, and that has none
		return
	}
	o.following[s] = true
	ctx, ended := o.ctx, o.ended
	o.readers.Go(func() { o.follow(ctx, ended, s, frames) })
}

// follow prints a stream until the end.
func (o *taskOutput) follow(ctx, ended context.Context, s taskStream, frames interfaces.Frames) {
	defer frames.Close()
	lines := lineSplitter{most: linewriter.MaxPiece, print: func(line []byte) error {
		o.printer.output(ctx, s, line)
		return nil
	}}
	_ = copyFrames(ctx, ended, frames, func(f *api.StreamFrame) error { // what can't be read is in no log
		o.mu.Lock()
		o.begins[s] = position{f.File, f.Offset}
		o.mu.Unlock()
		return lines.add(f.Data)
	})
	_ = lines.end() // print has no errors
}

// finish prints what is there, as far as it is read in readPause, and ends.
func (o *taskOutput) finish() {
	if o == nil {
		return
	}
	o.mu.Lock()
	stop, end := o.stop, o.end
	o.ctx, o.following = nil, nil
	o.mu.Unlock()
	if stop == nil {
		return
	}
	end()
	late := time.AfterFunc(readPause, stop)
	o.readers.Wait()
	late.Stop()
	stop()
}

// output prints a line that a task has printed. It waits for the reader until ctx ends.
func (p *printer) output(ctx context.Context, s taskStream, text []byte) {
	l := line{time.Now(), p.alloc, s.task, "Output", string(text), map[string]string{"stream": s.kind}}
	p.turn.Lock()
	defer p.turn.Unlock()
	if p.queue != nil {
		p.queue.Room(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if p.json {
		p.print(l)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	mark := markOf(s.kind, p.colors)
	fmt.Fprintf(p.out, "%s  %-*s  %s %s\n", l.Time.Local().Format("15:04:05.000"), int(p.width.Load()), s.task, mark, linewriter.OneLine(l.Message))
}

// failures finds the last words of tasks that fail: what they have written to standard error before.
type failures struct {
	mu      sync.Mutex // guards the fields below
	words   lastWords
	killing map[string]bool
}

func newFailures(l layout, alloc *api.Allocation) *failures {
	return &failures{words: lastWords{files: allocrunner.Files(l.Alloc(alloc.ID), alloc.GetTaskGroup())}, killing: map[string]bool{}}
}

// begin makes the present end of the tasks' output the beginning of what is theirs.
func (f *failures) begin(tasks []string) {
	for _, task := range tasks {
		f.words.of(task)
	}
}

// of returns the last words that belong to an event, none for one that is no failure.
func (f *failures) of(task string, e *api.TaskEvent) []string {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch e.Type {
	case api.TaskStarted:
		f.killing[task] = false
	case api.TaskKilling, api.TaskRestartSignal:
		f.killing[task] = true
	case api.TaskTerminated:
		words := f.words.of(task) // also when they are not asked for: those of the next process begin here
		if code := e.Details["exit_code"]; code != "0" && !f.killing[task] {
			return words
		}
	}
	return nil
}

// withWords returns an event's details with the last words of its task.
func withWords(details map[string]string, words []string) map[string]string {
	if len(words) == 0 {
		return details
	}
	details = maps.Clone(details)
	if details == nil {
		details = map[string]string{}
	}
	details["stderr"] = strings.Join(words, "\n")
	return details
}

// underneath returns the last words as lines that stand under their event.
func (p *printer) underneath(words []string) string {
	var b strings.Builder
	for _, word := range words {
		fmt.Fprintf(&b, "%*s%s %s\n", len("15:04:05.000")+int(p.width.Load())+4, "", markOf(api.FSLogNameStderr, p.colors),
			clipped(linewriter.OneLine(word), maxWord))
	}
	return b.String()
}

// maxWord is how much of a line is printed under an event.
const maxWord = 400
