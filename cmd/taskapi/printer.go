package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// printer says what happens to an allocation, a line for each thing: for people, or as JSON lines.
type printer struct {
	alloc string
	json  bool

	mu    sync.Mutex // guards the fields below; held while a line is written, so that lines stay whole
	width int        // of the column of task names
	out   io.Writer
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
	p := &printer{alloc: alloc.ID, json: asJSON, width: len("allocation"), out: out}
	p.fit(alloc)
	return p
}

// fit makes room for the names of the allocation's tasks.
func (p *printer) fit(alloc *api.Allocation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range alloc.GetTaskGroup().Tasks {
		p.width = max(p.width, len(t.Name))
	}
}

// taskEvent prints an event of a task.
func (p *printer) taskEvent(task string, e *api.TaskEvent) {
	p.print(line{time.Unix(0, e.Time), p.alloc, task, e.Type, e.DisplayMessage, e.Details})
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

// announce prints which allocation it is about from here on, and where its files are.
func (p *printer) announce(at time.Time, kind string, alloc *api.Allocation, l layout) {
	dir := l.alloc(alloc.ID)
	p.allocEventAt(at, kind, fmt.Sprintf("allocation %s of job %q, group %q, in %s", alloc.ID, alloc.JobID, alloc.TaskGroup, dir),
		"dir", dir, "operator_socket", l.operatorSocket(alloc.ID), "operator_token", l.operatorToken(alloc.ID))
}

func (p *printer) print(l line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		l.Time = l.Time.UTC()
		_ = json.NewEncoder(p.out).Encode(l) // a reader that has gone away must not end the allocation
		return
	}
	who := l.Task
	if who == "" {
		who = "allocation"
	}
	fmt.Fprintf(p.out, "%s  %-*s  %-16s  %s\n", l.Time.Local().Format("15:04:05.000"), p.width, who, l.Type, oneLine(l.Message))
}

// oneLine keeps a message on its line, and what a task or a file put into it from steering the terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', r == '\r':
			return ' '
		case r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0):
			return '?'
		}
		return r
	}, s)
}
