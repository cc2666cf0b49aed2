// Package bounded parses job files. Whatever a job file says, parsing it takes no more time and memory than the limits
// allow. HCL's functions can't be interrupted, and some texts take a parser hours, gigabytes or all of its stack: only
// the end of a process ends them. So Parse starts a process for each job file in HCL. The kernel holds the limits. A
// command reads a text that computes nothing by itself.
//
// That process is the program that imports this package, executed again. It parses in an init function, so that no
// program has to do anything for it.
package bounded

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/limited"
	"taskapi/internal/proc"
)

// command is the argument with which the program is executed again.
const command = "parse-job-file"

// maxAnswer bounds the job, as JSON, with its texts from files: the process that gets them has no limits.
const maxAnswer = 32 << 20

// The process reads a request from its standard input, and writes an answer. Both are in gob, which keeps bytes that
// are no UTF-8.
type (
	request struct {
		Config jobspec.Config
		Limits limited.Limits
	}
	answer struct {
		Job       []byte // as JSON
		FromFiles []string
		Error     string
		Invalid   bool // the error is jobspec.ErrInvalid
	}
)

// Parse is jobspec.Parse in a process of its own, which ends with ctx. Syntax trees may take 200 times the text's size.
func Parse(ctx context.Context, cfg jobspec.Config) (*api.Job, error) {
	return parse(ctx, cfg, limited.Limits{Seconds: 10, Memory: 256<<20 + 200*uint64(len(cfg.Body))})
}

func parse(ctx context.Context, cfg jobspec.Config, l limited.Limits) (*api.Job, error) {
	if jobspec.IsJSON(cfg) { // it has no functions, and encoding/json has limits
		return jobspec.Parse(cfg)
	}
	var input, stdout bytes.Buffer
	var words limited.Words
	if err := gob.NewEncoder(&input).Encode(request{cfg, l}); err != nil {
		return nil, fmt.Errorf("parse %s: %w", cfg.Filename, err)
	}
	// This very program, also when its file has been replaced.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &input, &stdout, &words
	if err := cmd.Run(); ctx.Err() != nil {
		return nil, ctx.Err()
	} else if what := l.Exceeded(cmd.ProcessState, &words); err != nil && what != "" {
		return nil, fmt.Errorf("%w: %s takes more than %s to read", jobspec.ErrInvalid, cfg.Filename, what)
	} else if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		why, _, _ := strings.Cut(words.String(), "\n")
		return nil, fmt.Errorf("%w: %s can't be read: its reader ended with %w (%s)",
			jobspec.ErrInvalid, cfg.Filename, exit, why)
	} else if err != nil {
		return nil, fmt.Errorf("start the reader of %s: %w", cfg.Filename, err)
	}
	var got answer
	if err := gob.NewDecoder(&stdout).Decode(&got); err != nil {
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
	job, err := jobspec.DecodeJob(got.Job)
	if err != nil { // it is nested too deep to be saved
		err = fmt.Errorf("%w: %s: %w", jobspec.ErrInvalid, cfg.Filename, err)
	}
	return job, err
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
	err := gob.NewDecoder(os.Stdin).Decode(&r)
	if err == nil {
		r.Limits.Memory += proc.Bytes(proc.Value("/proc/self/status", "VmData")) // which the runtime has taken already
		err = r.Limits.Set(nil)
	}
	if err == nil {
		err = gob.NewEncoder(os.Stdout).Encode(answerTo(r.Config))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func answerTo(cfg jobspec.Config) answer {
	read := &jobspec.FromFiles{}
	cfg.FromFiles = read
	job, err := jobspec.Parse(cfg)
	var got answer
	if err == nil {
		got.Job, err = json.Marshal(job)
	}
	if err != nil {
		got.Error, got.Invalid = err.Error(), errors.Is(err, jobspec.ErrInvalid)
	}
	got.FromFiles = read.Texts
	if len(got.Job)+len(got.Error)+len(strings.Join(read.Texts, "")) > maxAnswer {
		return answer{Invalid: true, Error: fmt.Sprintf("%v: the job of %s comes to more than %d MiB",
			jobspec.ErrInvalid, cfg.Filename, maxAnswer>>20)}
	}
	return got
}
