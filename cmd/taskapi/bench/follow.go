package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// followReport holds what readers get that follow a task's output over the operator's socket, each from the first byte to the last: every
// line is checked, and one that is missing, or comes twice, is an error.
type followReport struct {
	Readers int
	Bytes   int64         // that the task has printed
	Rate    float64       // bytes a second, that it has printed
	Behind  time.Duration // after its last line, until the last reader has it
	Agent   float64       // processor time of the agent, in percent of one processor
	// Logs and Cat are bytes a second of the files that are left, read once over the socket, without following, and by cat.
	Logs, Cat float64
}

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
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	const piece = 5 * time.Millisecond
	began := time.Now()
	var text []byte
	for sent := int64(0); sent < most; {
		due := min(most, int64(time.Since(began).Seconds()*followRate))
		text = text[:0]
		for ; sent < due && len(text) < 1<<20; sent += followLine {
			text = fmt.Appendf(text, "%0*d\n", followLine-1, sent/followLine)
		}
		if _, err := os.Stdout.Write(text); err != nil {
			return err
		}
		if sent >= due {
			if err := wait(ctx, piece); err != nil {
				return err
			}
		}
	}
	took := time.Since(began).Nanoseconds()
	if err := os.WriteFile(filepath.Join(filepath.Dir(begin), "took"), strconv.AppendInt(nil, took, 10), 0o644); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func measureFollow(ctx context.Context, env *environment, o options) (report *followReport, err error) {
	most := int64(o.seconds*float64(o.rounds)) * followRate
	most = max(most, followRate/10) / followLine * followLine
	s, err := env.agent(env.path(".data"), nil, "role-print", strconv.FormatInt(most, 10))
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	if err := s.allRun(ctx, 1); err != nil {
		return nil, err
	}
	var bodies []io.ReadCloser
	for range followers {
		body, err := s.logs(ctx, true)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		bodies = append(bodies, body)
	}
	before, err := processorTime(s.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
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
	after, err := processorTime(s.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	printed := time.Duration(0)
	if err := s.until(ctx, "has printed all", startTime, 5*time.Millisecond, func() bool {
		text, err := os.ReadFile(filepath.Join(data, "took"))
		n, numErr := strconv.ParseInt(string(text), 10, 64)
		printed = time.Duration(n)
		return err == nil && numErr == nil
	}); err != nil {
		return nil, err
	}
	report = &followReport{
		Readers: followers, Bytes: most, Rate: float64(most) / printed.Seconds(), Behind: max(took-printed, 0),
		Agent: 100 * (after - before) / took.Seconds(),
	}
	return report, s.readFiles(ctx, report)
}

// readLines reads numbered lines to the last one.
func readLines(body io.Reader, most int64) error {
	lines := bufio.NewReaderSize(body, 256<<10)
	for n := int64(0); n < most/followLine; n++ {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("after %d lines: %w", n, err)
		}
		if got, err := strconv.ParseInt(strings.TrimSpace(string(line)), 10, 64); err != nil || got != n || len(line) != followLine {
			return fmt.Errorf("line %d is %q", n, line)
		}
	}
	return nil
}

// readFiles reads the files that are left in both ways.
func (s *agent) readFiles(ctx context.Context, r *followReport) error {
	body, err := s.logs(ctx, false)
	if err != nil {
		return err
	}
	defer body.Close()
	began := time.Now()
	n, err := io.Copy(io.Discard, body)
	if err != nil {
		return err
	}
	r.Logs = float64(n) / time.Since(began).Seconds()
	files, err := filepath.Glob(filepath.Join(s.dir, "alloc", "logs", taskName+".stdout.*"))
	if err != nil {
		return err
	}
	cat := exec.CommandContext(ctx, "cat", files...)
	out, err := cat.StdoutPipe()
	if err != nil {
		return err
	}
	began = time.Now()
	if err := cat.Start(); err != nil {
		return err
	}
	m, err := io.Copy(struct{ io.Writer }{io.Discard}, out) // through this program, as the other
	if err := cat.Wait(); err != nil {
		return err
	}
	r.Cat = float64(m) / time.Since(began).Seconds()
	if err == nil && m != n {
		err = fmt.Errorf("cat has %d bytes, and logs %d", m, n)
	}
	return err
}

// logs requests the task's output as it is.
func (s *agent) logs(ctx context.Context, follow bool) (io.ReadCloser, error) {
	token, err := os.ReadFile(s.operatorToken())
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.operatorSocket())
	}, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://bench/v1/client/fs/logs/%s?task=%s&type=stdout&plain=true&follow=%t",
		s.allocID, taskName, follow), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-Nomad-Token", strings.TrimSpace(string(token)))
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body) // the status says enough
		_ = response.Body.Close()
		return nil, fmt.Errorf("logs: %s %s", response.Status, text)
	}
	return response.Body, nil
}

func (r *followReport) print(w io.Writer) {
	fmt.Fprintf(w, "a task's output, %s\t\n", megabytes(r.Bytes))
	fmt.Fprintf(w, "printed at\t%s/s\n", megabytes(int64(r.Rate)))
	fmt.Fprintf(w, "%d followers have all of it, behind by\t%s\n", r.Readers, millis(r.Behind))
	fmt.Fprintf(w, "processor time of the agent\t%.0f %% of one\n", r.Agent)
	fmt.Fprintf(w, "the files that are left, by logs / by cat\t%s/s / %s/s\n\n", megabytes(int64(r.Logs)), megabytes(int64(r.Cat)))
}
