package jobspec

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/internal/hcleval"
	"taskapi/allocrunner/jobspec/internal/schema"
)

// addHint adds to an error about a job file, whose text is src, what to write, if the parser's words don't say it.
func addHint(diag *hcl.Diagnostic, src []byte) {
	more := ""
	switch summary := diag.Summary; {
	case strings.HasPrefix(summary, "Missing name for "):
		kind := strings.TrimPrefix(summary, "Missing name for ")
		diag.Detail, more = "", fmt.Sprintf(`The block needs a name: %s "name" { ... }`, kind)
	case summary == "Unsupported argument", summary == "Unsupported block type":
		if strings.Contains(diag.Detail, "Did you mean") {
			return
		}
		more = whereItBelongs(string(diag.Subject.SliceBytes(src)))
	case summary == "Invalid expression":
		more = "A text stands in double quotes."
	}
	diag.Detail = strings.TrimSpace(diag.Detail + " " + more)
}

// commentInBraces returns an error at the first # in a ${…}; nil if there is none. A # begins a comment there, so the
// parser's errors are about the lines that follow.
func commentInBraces(name string, text []byte) *hcl.Diagnostic {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if at := commented().FindSubmatchIndex(line); at != nil {
			begin := hcl.Pos{Line: number, Column: utf8.RuneCount(line[:at[2]]) + 1}
			end := hcl.Pos{Line: number, Column: begin.Column + utf8.RuneCount(line[at[2]:at[3]])}
			return hcleval.ErrorAt(hcl.Range{Filename: name, Start: begin, End: end}, "Comment in ${…}", "A # begins a comment "+
				"there. Write a shell's own braces as $${, and as $$${ in a task's config, which is read twice.")
		}
	}
	return nil
}

// commented matches the beginning of a ${…} with a # in it.
var commented = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|[^$])(\$\{[^}"]*#)`) })

// foreignHint says what a text is that is no job file, and what to read; empty if that is unknown.
func foreignHint(text []byte) string {
	for line := range bytes.Lines(text) {
		switch string(bytes.TrimRight(line, " \t\r\n")) {
		case "services:":
			return "a compose file and no job file: docs/from-compose.md says which word becomes which"
		case "[Unit]", "[Service]":
			return "a unit of systemd and no job file: docs/from-systemd.md says which word becomes which"
		}
	}
	return ""
}

// whereItBelongs says which block an argument or a block belongs in; empty if the job specification does not have it.
func whereItBelongs(name string) string {
	switch name {
	case "command", "args", "work_dir", "image":
		return fmt.Sprintf("%s belongs in the task's config block.", name)
	case "environment", "environments", "envs":
		return "Variables of a task's environment belong in its block env { ... }."
	case "ports":
		return `A port is a block of the group's network block: port "http" { static = 8080 }.`
	case "healthcheck", "health_check", "checks":
		return "A check is a block of a service: check { ... }."
	case "depends_on":
		return `A task that runs before the others has the block lifecycle { hook = "prestart" }.`
	}
	parents := parentsOf(name)
	if len(parents) == 0 {
		return ""
	}
	return fmt.Sprintf("%s belongs in a %s block.", name, strings.Join(parents, " or "))
}

// mostParents is how many blocks a hint names.
const mostParents = 4

// parentsOf returns the types of the blocks that have an argument or a block of a name.
func parentsOf(name string) []string {
	var found []string
	level := []parent{{"job", reflect.TypeFor[api.Job]()}}
	seen := map[reflect.Type]bool{}
	for len(level) > 0 {
		var next []parent
		for _, p := range level {
			if seen[p.of] {
				continue
			}
			seen[p.of] = true
			for _, f := range schema.Fields(p.of) {
				if f.Name == name && f.Kind != "label" {
					found = append(found, p.block)
				}
				if elem := f.Elem(); elem != nil && f.Kind == "block" && f.Name != "connect" {
					next = append(next, parent{f.Name, elem})
				}
			}
		}
		level = next
	}
	slices.Sort(found)
	found = slices.Compact(found)
	return found[:min(len(found), mostParents)]
}

type parent struct {
	block string
	of    reflect.Type
}

// units of arguments that are numbers.
var units = map[string]string{"cpu": " (MHz)", "memory": " (MB)", "memory_max": " (MB)", "max_file_size": " (MB)",
	"size": " (MB)"}

// numberIn proposes the number with which a text begins that is no number, as "500MHz"; empty without one.
func numberIn(name, text string) string {
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	if _, err := strconv.Atoi(digits); err != nil {
		return ""
	}
	return fmt.Sprintf(" Write %s = %s%s.", name, digits, units[name])
}
