package follow

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/pflag"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

// OutputFlag says whether the tasks' output is printed among the events: by default on a terminal.
type OutputFlag struct{ flag *pflag.Flag }

func (o *OutputFlag) Add(f *pflag.FlagSet) {
	f.Bool("logs", false, "print what the tasks print (default on a terminal); =false: events alone")
	o.flag = f.Lookup("logs")
}

func (o OutputFlag) Wanted(w base.Environment, asJSON bool) bool {
	if o.flag != nil && o.flag.Changed {
		return o.flag.Value.String() == "true"
	}
	return !asJSON && output.IsTerminal(w.Stdout)
}

// TaskOutput prints the tasks' output among the events of their allocation. A slow reader delays the printing and never
// a task, since it reads the output from files.
type TaskOutput struct {
	printer *Printer
	files   interfaces.Files
	streams []TaskStream

	mu        sync.Mutex // guards the fields below
	begins    map[TaskStream]position
	following map[TaskStream]bool
	ctx       context.Context // of the present life; nil before the first stream
	stop, end func()          // at once; and when everything is printed that is there
	ended     context.Context
	readers   sync.WaitGroup
}

// NewTaskOutput records where the tasks' output ends now. Later output is printed after BeginAll or Started.
func NewTaskOutput(p *Printer, l base.Layout, alloc *api.Allocation) *TaskOutput {
	o := &TaskOutput{
		printer: p, files: l.Files(alloc), begins: map[TaskStream]position{},
		streams: StreamsOf(base.TaskNames(alloc), api.FSLogNameStdout, api.FSLogNameStderr),
	}
	for _, s := range o.streams {
		if at, err := Tail(context.Background(), o.files, s, 0); err == nil {
			o.begins[s] = at
		}
	}
	return o
}

// BeginAll begins to print the tasks whose log files existed.
func (o *TaskOutput) BeginAll() {
	for _, s := range o.streams {
		o.mu.Lock()
		_, there := o.begins[s]
		o.mu.Unlock()
		if there {
			o.begin(s)
		}
	}
}

// Started begins with a task that has started. Its log files are there by now.
func (o *TaskOutput) Started(task string) {
	if o == nil {
		return
	}
	for _, s := range o.streams {
		if s.Task == task {
			o.begin(s)
		}
	}
}

func (o *TaskOutput) begin(s TaskStream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.following[s] {
		return
	}
	if o.ctx == nil {
		o.ctx, o.stop = context.WithCancel(context.Background())
		o.ended, o.end = context.WithCancel(o.ctx)
		o.following = map[TaskStream]bool{}
	}
	span := o.begins[s].Span()
	span.Follow, span.Await = true, true
	frames, err := o.files.Logs(s.Task, s.Kind, span)
	if err != nil { // a task whose logs are disabled, and that has none
		return
	}
	o.following[s] = true
	ctx, ended := o.ctx, o.ended
	o.readers.Go(func() { o.follow(ctx, ended, s, frames) })
}

func (o *TaskOutput) follow(ctx, ended context.Context, s TaskStream, frames interfaces.Frames) {
	defer frames.Close()
	lines := LineSplitter{most: linewriter.MaxPiece, Print: func(line []byte) error {
		o.printer.output(ctx, s, line)
		return nil
	}}
	_ = CopyFrames(ctx, ended, frames, func(f *api.StreamFrame) error { // what can't be read is in no log
		o.mu.Lock()
		o.begins[s] = position{f.File, f.Offset}
		o.mu.Unlock()
		return lines.Add(f.Data)
	})
	_ = lines.End() // print has no errors
}

// Finish prints the remaining output, as far as a reader takes it within ReadPause, and ends.
func (o *TaskOutput) Finish() {
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
	late := time.AfterFunc(base.ReadPause, stop)
	o.readers.Wait()
	late.Stop()
	stop()
}

// output prints a line that a task has printed. It waits for the reader until ctx ends.
func (p *Printer) output(ctx context.Context, s TaskStream, text []byte) {
	l := line{time.Now(), p.alloc, s.Task, "Output", string(text), map[string]string{"stream": s.Kind}}
	p.turn.Lock()
	defer p.turn.Unlock()
	if p.Queue != nil {
		p.Queue.Room(ctx)
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
	mark := MarkOf(s.Kind, p.Colors)
	fmt.Fprintf(p.out, "%s  %-*s  %s %s\n", output.Clock(l.Time, time.Now()), int(p.width.Load()), p.who(s.Task), mark,
		linewriter.OneLine(l.Message))
}

// failures finds the last lines that failed tasks have written to standard error.
type failures struct {
	mu      sync.Mutex // guards the fields below
	words   LastWords
	killing map[string]bool
}

func NewFailures(l base.Layout, alloc *api.Allocation) *failures {
	return &failures{words: LastWords{Files: l.Files(alloc)}, killing: map[string]bool{}}
}

// of returns the last lines that belong to an event, none for an event that is no failure.
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
		words := f.words.Of(task) // also when they are not asked for: those of the next process begin here
		if code := e.Details["exit_code"]; code != "0" && !f.killing[task] {
			return words
		}
	}
	return nil
}
