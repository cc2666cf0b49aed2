package output

import (
	"fmt"
	"io"
	"os"

	"taskapi/internal/tty"
)

// Color is the colour of a text on a terminal. The zero value is plain.
type Color int

// The colours, those that every terminal has and that are readable on dark and light.
const (
	Plain   Color = 0
	Bold    Color = 1
	Dim     Color = 2
	Red     Color = 31
	Green   Color = 32
	Yellow  Color = 33
	Blue    Color = 34
	Magenta Color = 35
	Cyan    Color = 36
)

// Colors says whether texts are painted.
type Colors bool

// ColorsFor reports whether output to out has colours: out is a terminal, TERM is not dumb, NO_COLOR is not set, and
// CLICOLOR is not 0. CLICOLOR_FORCE paints also where there is no terminal; NO_COLOR wins. getenv is os.Getenv or
// alike.
func ColorsFor(out io.Writer, getenv func(string) string) Colors {
	switch force := getenv("CLICOLOR_FORCE"); {
	case getenv("NO_COLOR") != "":
		return false
	case force != "" && force != "0":
		return true
	}
	return Colors(IsTerminal(out) && getenv("TERM") != "dumb" && getenv("CLICOLOR") != "0")
}

// Paint returns a text in a colour, or unchanged without colours. The text must not steer the terminal itself.
func (on Colors) Paint(c Color, text string) string {
	if !on || c == Plain || text == "" {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", int(c), text)
}

// IsTerminal reports whether a reader or a writer is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && tty.IsTerminal(f)
}

// Width returns how many columns a terminal has, 0 when out is none.
func Width(out any) int {
	if f, ok := out.(*os.File); ok {
		_, columns := tty.Size(f)
		return int(columns)
	}
	return 0
}

// Height returns how many rows a terminal has, 0 when out is none.
func Height(out any) int {
	if f, ok := out.(*os.File); ok {
		rows, _ := tty.Size(f)
		return int(rows)
	}
	return 0
}

// StatusColor returns the colour of the status of an allocation, a task or a check.
func StatusColor(status string) Color {
	switch status {
	case "running", "healthy", "success", "passing":
		return Green
	case "failed", "failure", "unhealthy", "critical", "lost", "unknown":
		return Red
	case "pending", "restarting", taskPaused, taskStopped:
		return Yellow
	case "complete", taskNotStarted:
		return Dim
	}
	return Plain
}
