package tokensync

import (
	"context"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/wake"
)

// follow calls sync at once, again when something of this machine or below a prefix of the store changes, and after a
// pause when sync fails, until ctx ends. changed returns what is closed at this machine's next change; sync returns the
// store's index to go on from.
func follow(
	ctx context.Context, store cluster.Store, prefix string, changed func() <-chan struct{}, sync func() (uint64, error),
) {
	pauses := wake.Backoff{First: 200 * time.Millisecond, Last: 10 * time.Second}
	for ctx.Err() == nil {
		here := changed()
		index, err := sync()
		if err == nil {
			pauses.Reset()
			err = await(ctx, store, prefix, index, here)
		}
		if err != nil {
			_ = pauses.Sleep(ctx) // the loop sees that ctx has ended
		}
	}
}

// await returns at a change below a prefix of the store after an index, or when here is closed. Errors: the store's.
func await(ctx context.Context, store cluster.Store, prefix string, index uint64, here <-chan struct{}) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-here:
			cancel()
		case <-waiting.Done():
		}
	}()
	if _, err := store.Watch(waiting, prefix, index); err != nil && waiting.Err() == nil {
		return err
	}
	return nil
}
