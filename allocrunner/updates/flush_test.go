package updates_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/updates"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestFlushDeliversTheLastStateAfterRunHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		stuck, failing := newRecorder("stuck"), newRecorder("failing")
		stuck.stuck, failing.fails = true, 3
		b := updates.New(updates.Config{Sinks: []interfaces.Sink{stuck, failing}, Logger: quiet(&log)})
		ctx, stop := context.WithTimeout(t.Context(), 2*tick+tick/2)
		defer stop()
		b.AllocUpdated(version("a", 1, "running"))
		b.Run(ctx)
		b.AllocUpdated(version("a", 2, "complete"))
		stuck.set(func(r *recorder) { r.stuck = false })
		must.OK(t, b.Flush(t.Context()))
		stuck.refused(t, "200ms a@1")
		stuck.took(t, "500ms a@2")
		failing.refused(t, "200ms a@1", "400ms a@1", "500ms a@2") // Flush waits for no backoff of Run's
		failing.took(t, "1.3s a@2")
		if strings.Contains(log.String(), "stuck") {
			t.Errorf("a call that was cut short is no failure of the sink, but the log says:\n%s", &log)
		}
	})
}

func TestFlushEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, stuck, failing := newRecorder("good"), newRecorder("stuck"), newRecorder("failing")
		stuck.stuck, failing.fails = true, 1000
		b := updates.New(updates.Config{Sinks: []interfaces.Sink{good, stuck, failing},
			Logger: slog.New(slog.DiscardHandler)})
		b.AllocUpdated(version("a", 1, "complete"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := b.Flush(ctx)
		if took := time.Since(began); took != time.Minute || !errors.Is(err, context.DeadlineExceeded) ||
			!errors.Is(err, errDown) {
			t.Errorf("after %v: %v; want the end of the context and the sink's error after a minute", took, err)
		}
		if err == nil || strings.Contains(err.Error(), "good") || !strings.Contains(err.Error(), `"stuck"`) ||
			!strings.Contains(err.Error(), `"failing"`) {
			t.Errorf("got %q, want the sinks named that lack something", err)
		}
		good.took(t, "0s a@1")
	})
}

// TestFlushWaitsForItsTurn also has Run go on with what a Flush took and could not deliver.
func TestFlushWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newRecorder("s")
		sink.takes = time.Second
		b := running(t, slog.New(slog.DiscardHandler), sink)
		b.AllocUpdated(version("a", 1, "running"))
		time.Sleep(2 * tick) // a call is under way
		b.AllocUpdated(version("a", 2, "running"))
		must.OK(t, b.Flush(t.Context()))
		sink.took(t, "200ms a@1", "1.2s a@2")
		time.Sleep(time.Minute - time.Second) // nothing is due
		sink.set(func(r *recorder) { r.takes, r.stuck = 0, true })
		b.AllocUpdated(version("a", 3, "running"))
		ctx, cancel := context.WithTimeout(t.Context(), tick)
		defer cancel()
		flushed := make(chan error)
		go func() { flushed <- b.Flush(ctx) }()
		synctest.Wait()
		sink.set(func(r *recorder) { r.stuck = false }) // but for the call that is under way
		same.Error(t, context.DeadlineExceeded, <-flushed, "flush to a stuck sink")
		time.Sleep(time.Minute)
		sink.refused(t, "1m1.2s a@3")
		sink.took(t, "200ms a@1", "1.2s a@2", "1m1.4s a@3")
	})
}

func TestFlushOfNothingIsNothing(t *testing.T) {
	sink := newRecorder("s")
	b := updates.New(updates.Config{Sinks: []interfaces.Sink{sink}, Logger: slog.New(slog.DiscardHandler)})
	must.OK(t, b.Flush(t.Context()))
	sink.took(t)
}
