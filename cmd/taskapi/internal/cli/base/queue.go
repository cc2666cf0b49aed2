package base

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"taskapi/cmd/taskapi/internal/linewriter"
)

// QueuedLines returns standard output for lines that must not wait for their reader.
func QueuedLines(w Environment) *linewriter.Writer {
	return linewriter.New(w.Stdout, func(lost int) []byte { return []byte(LinesLost(lost) + "\n") })
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

// How long the last lines are waited for: the reader has readPause for each, and readTimeout for all.
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
