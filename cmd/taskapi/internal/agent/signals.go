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

// SameStop is how soon after a signal to stop another one of its kind is the same: timeout(1), and a service manager with a group to tell, send it to
// a process and then to its group.
const SameStop = 50 * time.Millisecond

// onSignals has the first SIGINT or SIGTERM stop the allocation gracefully and the second kill it, and SIGUSR1 detach it for another
// taskapi to resume. SIGHUP opens the audit log again and, like SIGPIPE and SIGXFSZ, stops nothing: a closed terminal, a reader of the
// events that has gone away, or a limit on the size of files is no reason to. They are caught rather than ignored, as tasks would inherit
// that.
func (a *Agent) onSignals() (release func()) {
	signals := a.cfg.Signals
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
					a.leave()
					a.detach()
					continue
				case syscall.SIGHUP:
					if w := a.working(); w != nil {
						w.reopenAudit()
					}
					continue
				}
				a.leave()
				if sig == kind && time.Since(first) < SameStop {
					continue
				}
				if kind != nil {
					a.kill()
					a.cfg.Events.AllocEvent("Killing", fmt.Sprintf("%v again: killing immediately", sig), "signal", sig.String())
					continue
				}
				first, kind = time.Now(), sig
				a.cfg.Events.AllocEvent("Stopping", fmt.Sprintf("%v: stopping gracefully; send again to kill immediately", sig), "signal", sig.String())
				background.Go(func() { // it waits for the disk, and the next signal must be heard
					if err := a.stop(context.Background(), interfaces.StopRequest{}, func() {}); err != nil {
						a.cfg.Logger.Warn(warnStop, "error", err)
					}
				})
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
