// Package bounded parses job files in a process of their own. It promises that a job file from anybody takes no more time and memory than its
// limits, whatever it says: HCL's functions can't be interrupted, and some texts take a parser hours, gigabytes or a whole stack.
//
// The process is the program that imports this package, executed again. It parses before its main would begin, so that no program has to see to it.
package bounded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/metrics"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proc"
	"taskapi/allocrunner/jobspec"
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

// request is what the process reads from its standard input, and answer what it writes.
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

// Parse is jobspec.Parse in a process of its own, which ends with ctx.
func Parse(ctx context.Context, cfg jobspec.Config) (*api.Job, error) { return parse(ctx, cfg, usual) }

func parse(ctx context.Context, cfg jobspec.Config, l limits) (*api.Job, error) {
	input, err := json.Marshal(request{cfg, l})
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", cfg.Filename, err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe", command) // this very program, also when its file has been replaced
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); ctx.Err() != nil {
		return nil, ctx.Err()
	} else if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		why, _, _ := strings.Cut(stderr.String(), "\n")
		return nil, fmt.Errorf("%w: %s can't be read: its reader ended with %s (%s)", jobspec.ErrInvalid, cfg.Filename, exit, why)
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
	var once sync.Once
	finish := func(got answer) {
		once.Do(func() {
			if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
				os.Exit(1) // whoever asked is gone
			}
			os.Exit(0)
		})
	}
	go watch(r.Limits, func(what string) {
		finish(answer{Error: fmt.Sprintf("invalid job file: %s takes more than %s to read", r.Config.Filename, what), Invalid: true})
	})
	finish(r.parse())
}

func (r request) parse() answer {
	var read jobspec.FromFiles
	r.Config.FromFiles = &read
	job, err := jobspec.Parse(r.Config)
	if err != nil {
		return answer{FromFiles: read.Texts, Error: err.Error(), Invalid: errors.Is(err, jobspec.ErrInvalid)}
	}
	data, err := json.Marshal(job)
	if err != nil {
		return answer{Error: fmt.Sprintf("encode job: %s", err)}
	}
	return answer{Job: data, FromFiles: read.Texts}
}

// watch calls exceeded once this process has taken more than the limits, with the one it has exceeded.
func watch(l limits, exceeded func(what string)) {
	memory := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	for range time.Tick(10 * time.Millisecond) {
		var used unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err == nil && time.Duration(used.Utime.Nano()+used.Stime.Nano()) > l.CPU {
			exceeded(fmt.Sprintf("%s of a processor's time", l.CPU))
		}
		if metrics.Read(memory); memory[0].Value.Uint64()-memory[1].Value.Uint64() > l.Memory {
			exceeded(fmt.Sprintf("%d MiB of memory", l.Memory>>20))
		}
	}
}
