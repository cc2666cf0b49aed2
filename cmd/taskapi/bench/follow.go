package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"taskapi/internal/load"
	"taskapi/internal/wake"
)

const (
	followers  = 4
	followRate = 100 << 20 // bytes a second
	followLine = 128       // bytes
)

// printRole prints numbered lines at a rate for a number of bytes, once a file is there, and then waits.
func printRole(ctx context.Context, args []string) error {
	most, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	begin := filepath.Join(os.Getenv("NOMAD_ALLOC_DIR"), "data", "begin")
	for _, err := os.Stat(begin); err != nil && ctx.Err() == nil; _, err = os.Stat(begin) {
		_ = wake.Sleep(ctx, 5*time.Millisecond)
	}
	began := time.Now()
	var text []byte
	line := firstLine()
	for sent := int64(0); sent < most && ctx.Err() == nil; {
		due := min(most, int64(time.Since(began).Seconds()*followRate))
		text = text[:0]
		for ; sent < due && len(text) < 1<<20; sent += followLine {
			text = append(text, line...)
			line.next()
		}
		if _, err := os.Stdout.Write(text); err != nil {
			return err
		}
		if sent >= due {
			_ = wake.Sleep(ctx, 5*time.Millisecond)
		}
	}
	<-ctx.Done()
	return nil
}

// follow follows a task's output over the operator's socket, each reader from the first byte to the last. Every line is
// checked: one that is missing, or comes twice, is an error.
func (env *environment) follow(ctx context.Context, o options) (_ []sample, err error) {
	most := int64(o.seconds*followRate) / followLine * followLine
	s, err := env.running(ctx, job(1, env.self, "role-print", strconv.FormatInt(most, 10)))
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	sdk, err := s.operator()
	if err != nil {
		return nil, err
	}
	defer sdk.Close()
	what := &api.QueryOptions{Params: map[string]string{"task": "t0", "type": "stdout", "plain": "true", "follow": "true"}}
	var bodies []io.ReadCloser
	for range followers {
		body, err := sdk.Raw().Response("/v1/client/fs/logs/"+s.allocID, what.WithContext(ctx))
		if err != nil {
			return nil, err
		}
		defer body.Close()
		bodies = append(bodies, body)
	}
	before, began := load.CPUTime(s.cmd.Process.Pid), time.Now()
	var readers errgroup.Group
	for _, body := range bodies {
		readers.Go(func() error { return readLines(body, most) })
	}
	if err := os.WriteFile(filepath.Join(s.dir, "alloc", "data", "begin"), nil, 0o600); err != nil {
		return nil, err
	}
	if err := readers.Wait(); err != nil {
		return nil, err
	}
	return []sample{
		timeSample(fmt.Sprintf("%s, printed in %v, read by %d followers in", megabytes(float64(most)),
			o.of(time.Second), followers), time.Since(began)),
		timeSample("CPU of the agent", load.CPUTime(s.cmd.Process.Pid)-before),
	}, nil
}

// A numberedLine is a line of the output, which counts up. Printing and parsing numbers would take longer than all that
// is measured.
type numberedLine []byte

func firstLine() numberedLine { return fmt.Appendf(nil, "%0*d\n", followLine-1, 0) }

// next makes the line the one that follows it.
func (l numberedLine) next() {
	for i := len(l) - 2; ; i-- {
		if l[i]++; l[i] <= '9' {
			return
		}
		l[i] = '0'
	}
}

// readLines reads numbered lines to the last one.
func readLines(body io.Reader, most int64) error {
	lines, want := bufio.NewReaderSize(body, 256<<10), firstLine()
	for n := int64(0); n < most/followLine; n++ {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("after %d lines: %w", n, err)
		}
		if !bytes.Equal(line, want) {
			return fmt.Errorf("line %d is %q", n, line)
		}
		want.next()
	}
	return nil
}
