package jobspec

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// maxDiagnostics is how many places one error prints; it counts the rest.
const maxDiagnostics = 20

// Error is everything that is wrong with a text, each with its position.
type Error struct {
	Diags   hcl.Diagnostics
	sources map[string][]byte // by file name, for the lines that are quoted

	fromFiles *FromFiles // texts that are not quoted
}

// Error returns one paragraph for each finding: "file:line:column: what is wrong", and the line itself.
func (e *Error) Error() string {
	var b strings.Builder
	for i, diag := range e.Diags {
		if i == maxDiagnostics {
			fmt.Fprintf(&b, "\n... and %d more", len(e.Diags)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(e.format(diag))
	}
	return b.String()
}

// Is reports that every such error is ErrInvalid.
func (e *Error) Is(target error) bool { return target == ErrInvalid }

func (e *Error) format(diag *hcl.Diagnostic) string {
	message := diag.Summary
	if diag.Detail != "" {
		message += ": " + diag.Detail
	}
	message = e.fromFiles.Mask(message)
	if diag.Subject == nil {
		return message
	}
	at := diag.Subject
	text := fmt.Sprintf("%s:%d:%d: %s", at.Filename, at.Start.Line, at.Start.Column, message)
	if line, ok := e.line(at.Filename, at.Start.Line); ok {
		text += fmt.Sprintf("\n  %4d | %s\n       | %s", at.Start.Line, line, marker(line, at))
	}
	return text
}

// longestLine bounds a quoted line; generated files have lines of any length.
const longestLine = 160

func (e *Error) line(file string, number int) (string, bool) {
	src, ok := e.sources[file]
	for ; ok && number > 1; number-- {
		_, src, ok = bytes.Cut(src, []byte("\n"))
	}
	line, _, _ := bytes.Cut(src, []byte("\n"))
	return strings.TrimRight(string(line), "\r"), ok && len(line) <= longestLine
}

func marker(line string, at *hcl.Range) string {
	start := at.Start.Column - 1
	width := 1
	if at.End.Line == at.Start.Line && at.End.Column > at.Start.Column {
		width = at.End.Column - at.Start.Column
	}
	runes := []rune(line)
	indent := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, string(runes[:min(start, len(runes))]))
	return indent + strings.Repeat("^", width)
}
