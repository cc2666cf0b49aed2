package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
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
	for _, err := os.Stat(begin); err != nil; _, err = os.Stat(begin) {
		if err := wake.Sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	const piece = 5 * time.Millisecond
	began := time.Now()
	var text []byte
	line := firstLine()
	for sent := int64(0); sent < most; {
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
			if err := wake.Sleep(ctx, piece); err != nil {
				return err
			}
		}
	}
	took := strconv.AppendInt(nil, time.Since(began).Nanoseconds(), 10)
	if err := os.WriteFile(filepath.Join(filepath.Dir(begin), "took"), took, 0o644); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// follow follows a task's output over the operator's socket, each reader from the first byte to the last. Every line is
// checked: one that is missing, or comes twice, is an error.
func (env *environment) follow(ctx context.Context, o options) (_ []sample, err error) {
	most := int64(o.seconds*followRate) / followLine * followLine
	s, err := env.running(ctx, server(env.self, "role-print", strconv.FormatInt(most, 10)), 1)
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	var bodies []io.ReadCloser
	for range followers {
		body, err := s.logs(ctx, true)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		bodies = append(bodies, body)
	}
	before := load.CPUTime(s.cmd.Process.Pid)
	began := time.Now()
	var readers errgroup.Group
	for _, body := range bodies {
		readers.Go(func() error { return readLines(body, most) })
	}
	data := filepath.Join(s.dir, "alloc", "data")
	if err := os.WriteFile(filepath.Join(data, "begin"), nil, 0o600); err != nil {
		return nil, err
	}
	if err := readers.Wait(); err != nil {
		return nil, err
	}
	took := time.Since(began)
	used := load.CPUTime(s.cmd.Process.Pid) - before
	printed := time.Duration(0)
	if err := s.until(ctx, "the task to have printed all", startTime, 5*time.Millisecond, func() bool {
		text, err := os.ReadFile(filepath.Join(data, "took"))
		n, numErr := strconv.ParseInt(string(text), 10, 64)
		printed = time.Duration(n)
		return err == nil && numErr == nil
	}); err != nil {
		return nil, err
	}
	byLogs, byCat, err := s.readFiles(ctx)
	return []sample{
		timeSample(fmt.Sprintf("%s printed in", megabytes(float64(most))), printed),
		timeSample(fmt.Sprintf("read by %d followers in", followers), took),
		timeSample("the last one behind by", max(took-printed, time.Microsecond)),
		timeSample("CPU of the agent", used),
		timeSample("the files that are left, by logs", byLogs),
		timeSample("the same, by cat", byCat),
	}, err
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

// readFiles reads the files that are left over the socket, without following, and by cat. It returns how long both
// took.
func (s *agent) readFiles(ctx context.Context) (byLogs, byCat time.Duration, err error) {
	body, err := s.logs(ctx, false)
	if err != nil {
		return 0, 0, err
	}
	defer body.Close()
	began := time.Now()
	var n countWriter
	if _, err := io.Copy(&n, body); err != nil {
		return 0, 0, err
	}
	byLogs = time.Since(began)
	files, err := filepath.Glob(filepath.Join(s.dir, "alloc", "logs", "t0.stdout.*"))
	if err != nil {
		return 0, 0, err
	}
	cat := exec.CommandContext(ctx, "cat", files...)
	var m countWriter
	cat.Stdout = &m // through this program, as the other
	began = time.Now()
	if err := cat.Run(); err != nil {
		return 0, 0, err
	}
	byCat = time.Since(began)
	if m != n {
		return 0, 0, fmt.Errorf("cat has %d bytes, and logs %d", m, n)
	}
	return byLogs, byCat, nil
}

type countWriter int64

func (c *countWriter) Write(p []byte) (int, error) {
	*c += countWriter(len(p))
	return len(p), nil
}

func (s *agent) logs(ctx context.Context, follow bool) (io.ReadCloser, error) {
	sdk, err := s.operator()
	if err != nil {
		return nil, err
	}
	what := map[string]string{"task": "t0", "type": "stdout", "plain": "true", "follow": strconv.FormatBool(follow)}
	options := (&api.QueryOptions{Params: what}).WithContext(ctx)
	return sdk.Raw().Response("/v1/client/fs/logs/"+s.allocID, options)
}
