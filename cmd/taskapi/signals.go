package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"taskapi/allocrunner/interfaces"
)

// sameStop is how soon after a signal to stop another one of its kind is the same: timeout(1), and a service manager with a group to tell, send it to
// a process and then to its group.
const sameStop = 50 * time.Millisecond

// onSignals has the first SIGINT or SIGTERM stop the allocation in order and the second kill it, and SIGUSR1 leave it running to
// another taskapi. SIGHUP opens the audit log again and, like SIGPIPE and SIGXFSZ, stops nothing: a closed terminal, a reader of the
// events that has gone away, or a limit on the size of files is no reason to. They are caught rather than ignored, as tasks would inherit
// that.
func (s *shift) onSignals() (release func()) {
	signals := s.signals
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGHUP)
	unheard := make(chan os.Signal, 1) // nobody receives: what does not fit is dropped
	signal.Notify(unheard, syscall.SIGPIPE, syscall.SIGXFSZ)
	done := make(chan struct{})
	var background sync.WaitGroup
	background.Go(func() {
		var first time.Time // of a signal to stop
		var kind os.Signal
		for {
			select {
			case <-done:
				return
			case sig := <-signals:
				switch sig {
				case syscall.SIGUSR1:
					s.leave()
					continue
				case syscall.SIGHUP:
					s.reopenAudit()
					continue
				}
				if sig == kind && time.Since(first) < sameStop {
					continue
				}
				if kind != nil {
					s.kill()
					s.printer.allocEvent("Killing", fmt.Sprintf("%v again: ending at once", sig), "signal", sig.String())
					continue
				}
				first, kind = time.Now(), sig
				s.printer.allocEvent("Stopping", fmt.Sprintf("%v: stopping in order; once more to end at once", sig), "signal", sig.String())
				background.Go(s.stopBySignal) // it waits for the disk, and the next signal must be heard
			}
		}
	})
	return func() {
		signal.Stop(signals)
		signal.Stop(unheard)
		close(done)
		background.Wait()
	}
}

func (s *shift) stopBySignal() {
	if err := s.stop(context.Background(), interfaces.StopRequest{}, func() {}); err != nil {
		s.logger.Warn(warnStop, "error", err)
	}
}

// reopenAudit has the sidecar at work open its audit log again.
func (s *shift) reopenAudit() {
	s.mu.Lock()
	side := s.side
	s.mu.Unlock()
	if side != nil {
		side.reopenAudit()
	}
}
