package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

// printer says what happens to an allocation, a line for each thing: for people, or as JSON lines.
type printer struct {
	alloc string
	json  bool
	queue *linewriter.Writer // to out; nil when a print waits for the reader
	width atomic.Int64       // of the column of task names

	colors   output.Colors // of tasks' output; events have none
	failures *failures     // whose last words stand under the events; nil for none
	turn     sync.Mutex    // held while a line of output waits for the reader, so that one does at a time

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

// newPrinter makes a printer for an allocation with the tasks named.
func newPrinter(out io.Writer, alloc *api.Allocation, asJSON bool) *printer {
	p := &printer{alloc: alloc.ID, json: asJSON, out: out}
	p.width.Store(int64(len("allocation")))
	p.fit(alloc)
	return p
}

// newQueuedPrinter makes a printer that waits for no reader: a stopped terminal, or a full pipe, must not keep tasks from being restarted or
// stopped. A line in the place of lost ones says how many they were.
func newQueuedPrinter(out io.Writer, alloc *api.Allocation, asJSON bool) *printer {
	p := newPrinter(nil, alloc, asJSON)
	p.queue = linewriter.New(out, func(lost int) []byte {
		return p.format(line{time.Now(), p.alloc, "", "Lines Lost", linesLost(lost), map[string]string{"lines": strconv.Itoa(lost)}})
	})
	p.out = p.queue
	return p
}

// queuedLines returns standard output for lines that must not wait for their reader.
func queuedLines(w Environment) *linewriter.Writer {
	return linewriter.New(w.Stdout, func(lost int) []byte { return []byte(linesLost(lost) + "\n") })
}

func linesLost(lost int) string {
	return fmt.Sprintf("%d %s not printed: nobody has read them", lost, plural(lost, "line was", "lines were"))
}

// queuedLog returns standard error for a log that must not wait for its reader.
func queuedLog(w Environment) *linewriter.Writer {
	return linewriter.New(w.Stderr, func(lost int) []byte {
		var b bytes.Buffer
		slog.New(slog.NewTextHandler(&b, nil)).Warn("lines of this log are missing: nobody has read them", "lines", lost)
		return b.Bytes()
	})
}

// How long the last lines are waited for: the reader has readPause for each, and readTimeout for all.
const (
	readPause   = 2 * time.Second
	readTimeout = 10 * time.Second
)

// flushAll writes the last lines, as far as they are read.
func flushAll(queues ...*linewriter.Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, q := range queues {
		all.Go(func() { q.Flush(ctx, readPause) })
	}
	all.Wait()
}

// fit makes room for the names of the allocation's tasks.
func (p *printer) fit(alloc *api.Allocation) {
	for _, t := range alloc.GetTaskGroup().Tasks {
		p.width.Store(max(p.width.Load(), int64(len(t.Name))))
	}
}

// taskEvent prints an event of a task.
func (p *printer) taskEvent(task string, e *api.TaskEvent) {
	words := p.failures.of(task, e)
	p.print(line{time.Unix(0, e.Time), p.alloc, task, e.Type, e.DisplayMessage, withWords(e.Details, words)}, words...)
}

// allocEvent prints something that happens to the allocation as a whole; pairs are keys and values of its details.
func (p *printer) allocEvent(kind, message string, pairs ...string) {
	p.allocEventAt(time.Now(), kind, message, pairs...)
}

// allocEventAt is allocEvent for something that another process has done before.
func (p *printer) allocEventAt(at time.Time, kind, message string, pairs ...string) {
	details := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		details[pairs[i]] = pairs[i+1]
	}
	p.print(line{at, p.alloc, "", kind, message, details})
}

// ended prints the end of the allocation, which is the last thing that has happened to it. why is empty when it ended well.
func (p *printer) ended(alloc *api.Allocation, why string) {
	p.allocEventAt(time.Unix(0, alloc.ModifyTime), "Ended", cmp.Or(why, "allocation is "+alloc.ClientStatus), "status", alloc.ClientStatus)
}

// announce prints which allocation the next lines are about, and where its files are.
func (p *printer) announce(at time.Time, kind string, alloc *api.Allocation, l layout) {
	dir := l.Alloc(alloc.ID)
	p.allocEventAt(at, kind, fmt.Sprintf("allocation %s of job %q, group %q, in %s", alloc.ID, alloc.JobID, alloc.TaskGroup, dir),
		"dir", dir, "operator_socket", l.OperatorSocket(alloc.ID), "operator_token", l.OperatorToken(alloc.ID))
}

// print prints a line, with the last words of its task under it.
func (p *printer) print(l line, words ...string) {
	text := p.format(l)
	if !p.json {
		text = append(text, p.underneath(words)...)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.out.Write(text) // a reader that has gone away must not end the allocation
}

// format returns the line as it is printed.
func (p *printer) format(l line) []byte {
	var b bytes.Buffer
	if p.json {
		l.Time = l.Time.UTC()
		_ = json.NewEncoder(&b).Encode(l) // text alone, which can always be encoded
		return b.Bytes()
	}
	who := l.Task
	if who == "" {
		who = "allocation"
	}
	fmt.Fprintf(&b, "%s  %-*s  %-16s  %s\n", l.Time.Local().Format("15:04:05.000"), int(p.width.Load()), who, l.Type, linewriter.OneLine(l.Message))
	return b.Bytes()
}
