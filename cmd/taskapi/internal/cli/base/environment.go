// Package base has the common parts of all commands: the process around them, errors and exit codes, arguments, the
// data directory, the allocation that the arguments name and its API, and output as JSON, templates and pages.
package base

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/filehead"
)

// Environment is the part of the process that a command may use.
type Environment struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Env            []string       // KEY=value
	Version        string         // of the program
	Signals        chan os.Signal // of taskapi run, from its first moment; nil for those from now on
}

// Printf writes to standard output.
func (w Environment) Printf(format string, args ...any) error {
	_, err := fmt.Fprintf(w.Stdout, format, args...)
	return err
}

// Warnf writes a line to standard error, with the program's name.
func (w Environment) Warnf(format string, args ...any) {
	fmt.Fprintf(w.Stderr, "taskapi: "+format+"\n", args...)
}

// UntilSignal returns a context that ends with a signal, for a command that only shows something.
func UntilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// Getenv returns the value of an environment variable, empty when it is not set.
func (w Environment) Getenv(key string) string {
	for _, pair := range slices.Backward(w.Env) {
		if value, ok := strings.CutPrefix(pair, key+"="); ok {
			return value
		}
	}
	return ""
}

// ReadInput reads a file, or standard input for "-". More bytes than most are an error.
func ReadInput(name string, stdin io.Reader, most int64) (text []byte, err error) {
	if name == "-" {
		name = "standard input"
		text, err = io.ReadAll(io.LimitReader(stdin, most+1))
	} else {
		text, err = filehead.Read(name, most+1)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, agent.UnwrapPath(err))
	case int64(len(text)) > most:
		return nil, fmt.Errorf("%s: more than %d bytes", name, most)
	}
	return text, nil
}

// Users returns the user of this process and, with sudo, the user who called it. A command that listens on a port for
// its user alone serves these.
func (w Environment) Users() []int {
	users := []int{os.Geteuid()}
	if uid, err := strconv.Atoi(w.Getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		users = append(users, uid)
	}
	return users
}

// Colors says whether the command prints in colours.
func (w Environment) Colors() output.Colors { return output.ColorsFor(w.Stdout, w.Getenv) }

// NewLogger logs to standard error: warnings, or each step.
func NewLogger(verbose bool, w Environment) *slog.Logger {
	level := slog.LevelWarn
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w.Stderr, &slog.HandlerOptions{Level: level}))
}

func LinesLost(lost int) string {
	return fmt.Sprintf("%d %s not printed: nobody has read them", lost, Plural(lost, "line was", "lines were"))
}

// QueuedLog returns standard error for a log that must not wait for its reader.
func QueuedLog(w Environment) *linewriter.Writer {
	return linewriter.New(w.Stderr, func(lost int) []byte {
		var b bytes.Buffer
		slog.New(slog.NewTextHandler(&b, nil)).Warn("lines of this log are missing: nobody has read them", "lines", lost)
		return b.Bytes()
	})
}

// The reader of the last lines has ReadPause for each of them, and readTimeout for all.
const (
	ReadPause   = 2 * time.Second
	readTimeout = 10 * time.Second
)

// FlushAll writes the last lines, as far as they are read.
func FlushAll(queues ...*linewriter.Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, q := range queues {
		all.Go(func() { q.Flush(ctx, ReadPause) })
	}
	all.Wait()
}
