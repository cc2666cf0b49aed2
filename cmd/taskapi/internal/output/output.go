// Package output prints the data of commands: as tables and in colours for people, as JSON or by a template for
// programs. It promises that no text of a task or a job file controls the terminal, and that a template that fails has
// written nothing.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/hashicorp/nomad/api"
)

// shortLen is how much of an ID is shown to people, as Nomad does.
const shortLen = 8

// ShortID returns the beginning of an allocation's ID.
func ShortID(id string) string { return id[:min(shortLen, len(id))] }

// ShortIDs returns the beginnings of IDs, each long enough to be unique.
func ShortIDs(ids []string) []string {
	short := make([]string, len(ids))
	for i, id := range ids {
		n := min(shortLen, len(id))
		for n < len(id) && slices.ContainsFunc(ids, func(other string) bool {
			return other != id && strings.HasPrefix(other,
				id[:n])
		}) {
			n++
		}
		short[i] = id[:n]
	}
	return short
}

// Date returns a time with its date, in the local zone, to the second.
func Date(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// Clock returns a time of an event, in the local zone, to the millisecond, with its date unless that is the day of now.
func Clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05.000")
	}
	return t.Format("2006-01-02 15:04:05.000")
}

// Duration returns a length of time in at most two units: 3d4h, 2h5m, 12s.
func Duration(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	days, hours, minutes, seconds := d/(24*time.Hour), d/time.Hour%24, d/time.Minute%60, d/time.Second%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, hours)
	case hours > 0:
		return fmt.Sprintf("%dh%dm", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%dm%ds", minutes, seconds)
	}
	return fmt.Sprintf("%ds", seconds)
}

// Bytes returns a size in binary units with three digits: 512 B, 1.50 KiB, 24.0 MiB.
func Bytes(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/(1<<10), 0
	for value >= 1000 && unit < len(units)-1 {
		value, unit = value/(1<<10), unit+1
	}
	digits := 2
	for limit := 10.0; digits > 0 && value >= limit; limit *= 10 {
		digits--
	}
	return fmt.Sprintf("%.*f %s", digits, value, units[unit])
}

// Of returns a use of memory beside its limit: 12.0 MiB/64.0 MiB. Without a limit it is the use alone.
func Of(used string, limit int64) string {
	if limit <= 0 || used == "-" {
		return used
	}
	return used + "/" + Bytes(uint64(limit))
}

// Granted returns what a task was given: CPU in MHz, and the limit of its memory in bytes; 0 for none, or for one that
// nothing enforces.
func Granted(a *api.Allocation, task string) (megahertz, bytes int64) {
	if a == nil || a.AllocatedResources == nil || a.AllocatedResources.Tasks[task] == nil {
		return 0, 0
	}
	given := a.AllocatedResources.Tasks[task]
	bytes = given.Memory.MemoryMB
	if most := given.Memory.MemoryMaxMB; most != 0 {
		bytes = most
	}
	if s := a.TaskStates[task]; s != nil && slices.ContainsFunc(s.Events, func(e *api.TaskEvent) bool {
		return e.Type == api.TaskStarted && e.Details["unlimited"] != ""
	}) {
		bytes = 0
	}
	return given.Cpu.CpuShares, min(max(bytes, 0), math.MaxInt64>>20) << 20
}

// Devices returns the devices that a task has for itself, a text each.
func Devices(a *api.Allocation, task string) (texts []string) {
	if a.AllocatedResources == nil || a.AllocatedResources.Tasks[task] == nil {
		return nil
	}
	for _, d := range a.AllocatedResources.Tasks[task].Devices {
		if d.Vendor != "" { // else it is cores
			texts = append(texts, fmt.Sprintf("%s/%s/%s: %s", d.Vendor, d.Type, d.Name, strings.Join(d.DeviceIDs, " ")))
		}
	}
	return texts
}

var units = []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// JSON writes a value as indented JSON. A json.RawMessage is written as it is.
func JSON(out io.Writer, value any) error {
	text, raw := value.(json.RawMessage)
	if !raw {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(value); err != nil {
			return err
		}
		text = b.Bytes()
	}
	return writeLine(out, text)
}

// writeLine writes a text with a line break at its end.
func writeLine(out io.Writer, text []byte) error {
	if !bytes.HasSuffix(text, []byte("\n")) {
		text = append(bytes.Clone(text), '\n')
	}
	_, err := out.Write(text)
	return err
}

// TemplateError is a template that is wrong, or names a field that the value does not have.
type TemplateError struct{ Err error }

func (e *TemplateError) Error() string {
	return strings.TrimPrefix(e.Err.Error(), "template: ")
}
func (e *TemplateError) Unwrap() error { return e.Err }

// Template is a Go text/template for one value.
type Template struct{ parsed *template.Template }

// ParseTemplate reads a template. Beside what Go has, json writes a value as JSON on one line, and join the strings of
// a list. Errors: *TemplateError.
func ParseTemplate(text string) (*Template, error) {
	t, err := template.New("template").Option("missingkey=error").Funcs(functions).Parse(text)
	if err == nil && !strings.Contains(text, "{{") {
		err = fmt.Errorf("%q has no field in {{ }}", text)
	}
	if err != nil {
		return nil, &TemplateError{err}
	}
	return &Template{t}, nil
}

var functions = template.FuncMap{
	"json": func(v any) (string, error) {
		text, err := json.Marshal(v)
		return string(text), err
	},
	"join": func(separator string, list []string) string { return strings.Join(list, separator) },
}

// Write writes what the template makes of a value, and a line break. Errors: *TemplateError, before anything is
// written; the writer's.
func (t *Template) Write(out io.Writer, value any) error {
	var b bytes.Buffer
	if err := t.parsed.Execute(&b, value); err != nil {
		return &TemplateError{err}
	}
	return writeLine(out, b.Bytes())
}
