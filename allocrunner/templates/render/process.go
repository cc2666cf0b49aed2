package render

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/limited"
	"taskapi/internal/proc"
)

// Command is the first argument with which the program is re-executed to render templates.
const Command = "render-templates"

// Main renders the requests on its standard input until the input ends. The program's main calls it before anything
// else when os.Args[1] is Command, and exits with the returned code.
func Main() int {
	if err := limits.Set(map[int]uint64{unix.RLIMIT_FSIZE: 0}); err != nil {
		fmt.Fprintln(os.Stderr, "limit:", err)
		return 1
	}
	_ = proc.Undumpable() // a kernel that can't do that is no reason not to render
	debug.SetMaxStack(maxStack)
	requests, responses := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var request Request
		err := requests.Decode(&request)
		if errors.Is(err, io.EOF) {
			return 0
		}
		if err == nil {
			err = responses.Encode(Render(request))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}

// maxWait bounds the time of a rendering, which takes milliseconds. A process that is not given the processor for that
// long is given up.
const maxWait = 5 * time.Minute

// maxResponse bounds how much of a response is read. Base64 makes the output a third longer, and queries come with it.
const maxResponse = 2 * MaxOutput

// Session is a process that renders. It must be closed. Its methods must not be called at the same time.
type Session struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	out     *io.LimitedReader
	decoder *json.Decoder
	words   limited.Words
	cancel  context.CancelFunc
}

// Start starts a process, which ends with ctx.
func Start(ctx context.Context) (*Session, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &Session{command: exec.CommandContext(ctx, "/proc/self/exe", Command), cancel: cancel}
	s.command.Env = []string{"GOMEMLIMIT=256MiB", "GOMAXPROCS=2", "GODEBUG=containermaxprocs=0"}
	s.command.Dir = "/"
	s.command.Stderr = &s.words
	s.command.WaitDelay = time.Second
	stdin, noInput := s.command.StdinPipe()
	stdout, noOutput := s.command.StdoutPipe()
	err := cmp.Or(noInput, noOutput)
	if err == nil {
		err = s.command.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("start the process that renders templates: %w", err)
	}
	s.stdin, s.out = stdin, &io.LimitedReader{R: stdout}
	s.decoder = json.NewDecoder(s.out)
	return s, nil
}

// Render renders a request. After an error the session is of no more use. Errors: a bound that a template went beyond,
// in words.
func (s *Session) Render(req Request) (Response, error) {
	give := time.AfterFunc(maxWait, s.cancel)
	defer give.Stop()
	s.out.N = maxResponse
	err := json.NewEncoder(s.stdin).Encode(req)
	var response Response
	if err == nil {
		err = s.decoder.Decode(&response)
	}
	if err == nil {
		return response, nil
	}
	if s.out.N <= 0 {
		return Response{}, errTooLong
	}
	return Response{}, s.explain()
}

// explain waits for the end of the process, and says why it ended.
func (s *Session) explain() error {
	_ = s.stdin.Close()
	err := s.command.Wait()
	words := s.words.String()
	exceeded := limits.Exceeded(s.command.ProcessState, &s.words)
	switch {
	case strings.Contains(words, "stack exceeds") || strings.Contains(words, "stack overflow"):
		return fmt.Errorf("the templates need more than %d MiB of stack: does one execute itself?", maxStack>>20)
	case exceeded != "":
		return fmt.Errorf("the templates need more than %s: does a loop not end?", exceeded)
	case err == nil:
		err = errors.New("it ended too early")
	}
	return fmt.Errorf("the process that renders templates: %w", err)
}

// Close ends the process.
func (s *Session) Close() {
	s.cancel()
	_ = s.stdin.Close()
	_ = s.command.Wait() // its end is wanted
}
