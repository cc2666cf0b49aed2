// Package bounded parses job files. Whatever a job file says, parsing it takes no more time and memory than the limits
// allow. HCL's functions can't be interrupted, and some texts take a parser hours or gigabytes: only the end of a
// process ends them. Here is for a process that ends soon after an error; Parse is for all others, and starts a process
// for each job file.
//
// That process is the program that imports this package, executed again. It parses in an init function, so that no
// program has to do anything for it.
package bounded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/memory"
	"taskapi/internal/proc"
)

// command is the argument with which the program is executed again.
const command = "parse-job-file"

// limits are what one job file may take.
type limits struct {
	CPU    time.Duration // of all processors together, so that a busy machine fails no job file
	Memory uint64
}

// usual are the limits of Parse. A job file of 4 MiB, the largest, can take 200 times its size.
var usual = limits{CPU: 10 * time.Second, Memory: 1 << 30}

// The process reads a request from its standard input, and writes an answer.
type (
	request struct {
		Config jobspec.Config
		Limits limits
	}
	answer struct {
		Job       json.RawMessage
		FromFiles []string
		Error     string
		Invalid   bool // the error is jobspec.ErrInvalid
	}
)

// Here is jobspec.Parse in this process, for a command that ends soon after an error: the parser may still be at work
// then. It takes a third of the time of Parse.
func Here(cfg jobspec.Config) (*api.Job, error) { return here(cfg, usual) }

func here(cfg jobspec.Config, l limits) (*api.Job, error) {
	type result struct {
		job  *api.Job
		err  error
		read jobspec.FromFiles
	}
	done := make(chan result, 1)
	began := used()
	go func() {
		var r result
		own := cfg
		own.FromFiles = &r.read
		r.job, r.err = jobspec.Parse(own)
		done <- r
	}()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case r := <-done:
			if cfg.FromFiles != nil {
				*cfg.FromFiles = r.read
			}
			return r.job, r.err
		case <-look.C:
			if what := l.exceeded(began); what != "" {
				return nil, tooMuch(cfg, what)
			}
		}
	}
}

// tooMuch is the error about a job file that exceeds a limit.
func tooMuch(cfg jobspec.Config, what string) invalid {
	return invalid(fmt.Sprintf("invalid job file: %s takes more than %s to read", cfg.Filename, what))
}

// Parse is jobspec.Parse in a process of its own, which ends with ctx. It is for a process that goes on after an error.
func Parse(ctx context.Context, cfg jobspec.Config) (*api.Job, error) { return parse(ctx, cfg, usual) }

func parse(ctx context.Context, cfg jobspec.Config, l limits) (*api.Job, error) {
	input, err := json.Marshal(request{cfg, l})
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", cfg.Filename, err)
	}
	var stdout, stderr bytes.Buffer
	// This very program, also when its file has been replaced.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); ctx.Err() != nil {
		return nil, ctx.Err()
	} else if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		why, _, _ := strings.Cut(stderr.String(), "\n")
		return nil, fmt.Errorf("%w: %s can't be read: its reader ended with %w (%s)",
			jobspec.ErrInvalid, cfg.Filename, exit, why)
	} else if err != nil {
		return nil, fmt.Errorf("start the reader of %s: %w", cfg.Filename, err)
	}
	var got answer
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		return nil, fmt.Errorf("parse %s: %w", cfg.Filename, err)
	}
	if cfg.FromFiles != nil {
		cfg.FromFiles.Texts = got.FromFiles
	}
	switch {
	case got.Invalid:
		return nil, invalid(got.Error)
	case got.Error != "":
		return nil, errors.New(got.Error)
	}
	return jobspec.DecodeJob(got.Job)
}

// invalid is the text of an error that is jobspec.ErrInvalid.
type invalid string

func (e invalid) Error() string        { return string(e) }
func (e invalid) Is(target error) bool { return target == jobspec.ErrInvalid }

func init() {
	if len(os.Args) == 2 && os.Args[1] == command {
		_ = proc.Undumpable()
		serve()
	}
}

// serve parses a job file, writes the answer and ends the process.
func serve() {
	var r request
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var read jobspec.FromFiles
	r.Config.FromFiles = &read
	job, err := here(r.Config, r.Limits)
	got := answer{FromFiles: read.Texts}
	if err == nil {
		got.Job, err = json.Marshal(job)
	}
	if err != nil {
		got.Error, got.Invalid = err.Error(), errors.Is(err, jobspec.ErrInvalid)
	}
	if json.NewEncoder(os.Stdout).Encode(got) != nil {
		os.Exit(1) // the parent is gone
	}
	os.Exit(0)
}

// lookEvery is how often a process looks at its use of memory and time.
const lookEvery = 10 * time.Millisecond

type usage struct {
	cpu    time.Duration
	memory uint64 // of the Go runtime, in bytes
}

func used() usage {
	u := usage{memory: memory.InUse()}
	var self unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &self); err == nil {
		u.cpu = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	}
	return u
}

// exceeded returns in words which limit this process has exceeded since it had used began; empty for none.
func (l limits) exceeded(began usage) string {
	switch now := used(); {
	case now.cpu-began.cpu > l.CPU:
		return fmt.Sprintf("%s of a processor's time", l.CPU)
	case now.memory > began.memory+l.Memory:
		return fmt.Sprintf("%d MiB of memory", l.Memory>>20)
	}
	return ""
}
