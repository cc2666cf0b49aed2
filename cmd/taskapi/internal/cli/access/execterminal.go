package access

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/charmbracelet/x/term"
	"github.com/hashicorp/nomad/api"
)

// lentTerminal is this program's terminal while a command in a task has it: every key goes to the command.
type lentTerminal struct {
	sizes <-chan api.TerminalSize // the present one, and each that follows

	giveBack func() // restores the terminal, once
}

// borrowTerminal makes the terminal raw, and watches its size.
func borrowTerminal(stdin, stdout any) (*lentTerminal, error) {
	in, ok := stdin.(*os.File)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	screen := in
	if out, ok := stdout.(*os.File); ok && term.IsTerminal(out.Fd()) {
		screen = out
	}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	before, err := term.MakeRaw(in.Fd())
	if err != nil {
		signal.Stop(changes)
		return nil, err
	}
	sizes, done := make(chan api.TerminalSize), make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			width, height, err := term.GetSize(screen.Fd())
			if err == nil {
				select {
				case sizes <- api.TerminalSize{Width: width, Height: height}:
				case <-done:
					return
				}
			}
			select {
			case <-changes:
			case <-done:
				return
			}
		}
	})
	return &lentTerminal{sizes: sizes, giveBack: sync.OnceFunc(func() {
		close(done)
		signal.Stop(changes)
		watch.Wait()
		_ = term.Restore(in.Fd(), before) // it may be gone, and then there is nothing to restore
	})}, nil
}

// escaped is the input of a session on a terminal, in which the escape character and a dot at the beginning of a line
// end the session. Twice the character is the character.
type escaped struct {
	from    io.Reader
	char    byte
	end     func()
	atStart bool // of a line
	begun   bool // the last byte was the character, at the start of a line, and has not been passed on
}

// Read returns input without the escape characters that have been understood.
func (e *escaped) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortBuffer
	}
	buffer := make([]byte, len(p)/2) // each may become two
	n, err := e.from.Read(buffer)
	out := p[:0]
	for _, b := range buffer[:n] {
		begun := e.begun
		e.begun = false
		switch {
		case begun && b == '.':
			e.end()
			return len(out), io.EOF
		case begun && b != e.char:
			out = append(out, e.char)
		case !begun && e.atStart && b == e.char:
			e.begun = true
			continue
		}
		out = append(out, b)
		e.atStart = b == '\r' || b == '\n'
	}
	return len(out), err
}
