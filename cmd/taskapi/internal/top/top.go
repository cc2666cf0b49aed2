// Package top is the live view of allocations for a terminal: screens that only messages change, two small interfaces
// through which they read and act, and their implementation with Nomad's SDK. It promises that a task's output and
// names reach the terminal only as text, that memory and processor time are bounded whatever the tasks write, and that
// the terminal is restored.
package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
)

// framesPerSecond is how often the screen is drawn at most. A terminal over ssh takes no more, and the cost of an idle
// screen grows with it.
const framesPerSecond = 12

// Run shows the screen until its user leaves it, SIGINT, SIGTERM or SIGHUP ends it, or ctx ends. Errors: those of a
// terminal that can't be used or has gone away.
func Run(ctx context.Context, c Config) error {
	w := newWork(ctx)
	m := newModel(c, w)
	defer m.Close()
	defer w.Close()
	return m.run(ctx)
}

func (m *Model) run(ctx context.Context) error {
	c := m.Config
	profile := colorprofile.Ascii
	if c.Terminal.Colour {
		profile = colorprofile.ANSI
	}
	ended, release := endedBySignal(ctx, m)
	defer release()
	_, err := tea.NewProgram(m,
		tea.WithContext(ended),
		tea.WithInput(c.Terminal.In), tea.WithOutput(c.Terminal.Out), tea.WithEnvironment(c.Terminal.Env),
		tea.WithColorProfile(profile), tea.WithFPS(framesPerSecond), tea.WithoutSignalHandler(),
	).Run()
	if m.failed != nil {
		return m.failed
	}
	if ended.Err() != nil && !errors.Is(err, tea.ErrProgramPanic) {
		return nil // a signal ended it; a terminal that hung up can't be restored, either
	}
	if err != nil {
		return fmt.Errorf("the screen: %w", err)
	}
	return nil
}

// endedBySignal returns a context that the first signal ends; a second one ends the process, when the terminal
// takes no output any more. While a command has the terminal, an interrupt from the keyboard is for that alone.
func endedBySignal(ctx context.Context, m *Model) (ended context.Context, release func()) {
	ended, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer signal.Stop(signals)
		for {
			select {
			case <-ended.Done():
				return
			case s := <-signals:
				if s != syscall.SIGINT || !m.lent.Load() {
					cancel()
				}
			}
		}
	}()
	return ended, func() { cancel(); <-done }
}
