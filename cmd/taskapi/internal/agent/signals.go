package agent

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

// SameStop is the time in which a second signal of the same kind counts as the first: timeout(1) and service managers
// send a signal to a process and then to its group.
const SameStop = 50 * time.Millisecond

// onSignals handles signals: the first SIGINT or SIGTERM stops the allocation gracefully, and the second kills it.
// SIGUSR1 detaches it for another taskapi to resume. SIGHUP ends nothing: a terminal may close.
func (a *Agent) onSignals() (release func()) {
	signals := a.cfg.Signals
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGHUP)
	done := make(chan struct{})
	var background sync.WaitGroup
	background.Go(func() {
		var first time.Time // when the first signal to stop came
		var kind os.Signal
		for {
			select {
			case <-done:
				return
			case sig := <-signals:
				if sig == syscall.SIGHUP {
					continue
				}
				a.leave()
				if sig == syscall.SIGUSR1 {
					a.detach()
					continue
				}
				if sig == kind && time.Since(first) < SameStop {
					continue
				}
				if kind != nil {
					a.kill()
					said := fmt.Sprintf("%v again: killing immediately", sig)
					a.cfg.Events.AllocEvent("Killing", said, "signal", sig.String())
					continue
				}
				first, kind = time.Now(), sig
				said := fmt.Sprintf("%v: stopping gracefully; send again to kill immediately", sig)
				a.cfg.Events.AllocEvent("Stopping", said, "signal", sig.String())
				background.Go(func() { // a stop waits for the disk, and the next signal must be handled meanwhile
					if err := a.stop(context.Background(), interfaces.StopRequest{}, func() {}); err != nil {
						a.cfg.Logger.Warn(warnStop, "error", err)
					}
				})
			}
		}
	})
	return func() {
		signal.Stop(signals)
		close(done)
		background.Wait()
	}
}
