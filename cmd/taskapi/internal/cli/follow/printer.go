package follow

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

// MarkOf returns the mark between a task and its line: ! for standard error, | for standard output.
func MarkOf(kind string, colors output.Colors) string {
	if kind == api.FSLogNameStderr {
		return colors.Paint(output.Red, "!")
	}
	return colors.Paint(output.Dim, "|")
}

// Printer prints an allocation's events, as lines for people or as JSON lines.
type Printer struct {
	alloc string
	json  bool
	Queue *linewriter.Writer // to out; nil when a print waits for the reader
	width atomic.Int64       // of the column of task names

	Colors   output.Colors      // of tasks' output; events have none
	Failures *failures          // finds the last lines of failed tasks, which stand under their events; nil for none
	Output   *TaskOutput        // begins and ends with the events; nil when it is not printed
	Layout   base.Layout        // where the allocation is
	Label    string             // names the allocation among others; empty for one alone
	Log      *linewriter.Writer // is flushed with the queue

	turn sync.Mutex // held while a line of output waits for the reader, so that one does at a time

	mu  sync.Mutex // guards the field below; held while a line is written, so that lines stay whole
	out io.Writer
}

// line is one JSON line. Task is absent when the line is about the allocation.
type line struct {
	Time    time.Time         `json:"time"`
	Alloc   string            `json:"alloc"`
	Task    string            `json:"task,omitempty"`
	Type    string            `json:"type"`
	Message string            `json:"message"`
	Details map[string]string `json:"details,omitempty"`
}

// NewPrinter makes a printer for an allocation with the tasks named.
func NewPrinter(out io.Writer, alloc *api.Allocation, asJSON bool) *Printer {
	p := &Printer{alloc: alloc.ID, json: asJSON, out: out}
	p.width.Store(int64(len("allocation")))
	p.Fit(alloc)
	return p
}

// NewQueuedPrinter makes a printer that waits for no reader: a stopped terminal or a full pipe must not delay the
// restart or the stop of a task. Where lines are lost, a line says how many.
func NewQueuedPrinter(out io.Writer, alloc *api.Allocation, asJSON bool) *Printer {
	p := NewPrinter(nil, alloc, asJSON)
	p.Queue = linewriter.New(out, func(lost int) []byte {
		return p.format(line{time.Now(), p.alloc, "", "Lines Lost", base.LinesLost(lost),
			map[string]string{"lines": strconv.Itoa(lost)}})
	})
	p.out = p.Queue
	return p
}

// Fit makes the column of names wide enough for the allocation's tasks.
func (p *Printer) Fit(alloc *api.Allocation) {
	for _, t := range alloc.GetTaskGroup().Tasks {
		p.width.Store(max(p.width.Load(), int64(len(t.Name))))
	}
}

// Widen makes the column of names wide enough for others beside this allocation's.
func (p *Printer) Widen(width int) { p.width.Store(max(p.width.Load(), int64(width))) }

// who returns the name of a task, or of the allocation when task is empty.
func (p *Printer) who(task string) string {
	switch {
	case p.Label == "":
		return cmp.Or(task, "allocation")
	case task == "":
		return p.Label
	}
	return p.Label + "/" + task
}

// TaskEvent prints an event of a task.
func (p *Printer) TaskEvent(task string, e *api.TaskEvent) {
	details, words := e.Details, p.Failures.of(task, e)
	if len(words) > 0 {
		details = map[string]string{"stderr": strings.Join(words, "\n")}
		maps.Copy(details, e.Details)
	}
	p.print(line{time.Unix(0, e.Time), p.alloc, task, e.Type, e.DisplayMessage, details}, words...)
	if e.Type == api.TaskStarted {
		p.Output.Started(task)
	}
}

// AllocEvent prints something that happens to the allocation as a whole; pairs are keys and values of its details.
func (p *Printer) AllocEvent(kind, message string, pairs ...string) {
	p.allocEventAt(time.Now(), kind, message, pairs...)
}

// allocEventAt is AllocEvent for something that happened before.
func (p *Printer) allocEventAt(at time.Time, kind, message string, pairs ...string) {
	details := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		details[pairs[i]] = pairs[i+1]
	}
	p.print(line{at, p.alloc, "", kind, message, details})
}

// Ended prints the end of the allocation, its last event. why is empty if it ended well.
func (p *Printer) Ended(alloc *api.Allocation, why string) {
	p.Output.Finish()
	p.allocEventAt(time.Unix(0, alloc.ModifyTime), "Ended", cmp.Or(why, "allocation is "+alloc.ClientStatus), "status",
		alloc.ClientStatus)
}

// Announce prints which allocation the next lines are about, and where its files are.
func (p *Printer) Announce(kind string, alloc *api.Allocation) { p.announceAt(time.Now(), kind, alloc) }

func (p *Printer) announceAt(at time.Time, kind string, alloc *api.Allocation) {
	id, dir := alloc.ID, p.Layout.Alloc(alloc.ID)
	p.allocEventAt(at, kind, fmt.Sprintf("allocation %s of job %q, group %q, in %s", id, alloc.JobID, alloc.TaskGroup,
		dir),
		"name", alloc.Name, "dir", dir,
		"operator_socket", p.Layout.OperatorSocket(id), "operator_token", p.Layout.OperatorToken(id))
}

// Flush writes the last lines of events and of the log, as far as they are read.
func (p *Printer) Flush() { base.FlushAll(p.Queue, p.Log) }

// maxWord is how much of a line is printed under an event.
const maxWord = 400

func (p *Printer) print(l line, words ...string) {
	text := p.format(l)
	for _, word := range words {
		if !p.json { // there they are among the details
			text = fmt.Appendf(text, "%*s%s %s\n", len(output.Clock(l.Time, time.Now()))+int(p.width.Load())+4, "",
				MarkOf(api.FSLogNameStderr, p.Colors), base.Clipped(linewriter.OneLine(word), maxWord))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.out.Write(text) // a reader that has gone away must not end the allocation
}

func (p *Printer) format(l line) []byte {
	var b bytes.Buffer
	if p.json {
		l.Time = l.Time.UTC()
		_ = json.NewEncoder(&b).Encode(l) // text alone, which can always be encoded
		return b.Bytes()
	}
	fmt.Fprintf(&b, "%s  %-*s  %-16s  %s\n", output.Clock(l.Time, time.Now()), int(p.width.Load()), p.who(l.Task), l.Type,
		linewriter.OneLine(l.Message))
	return b.Bytes()
}
