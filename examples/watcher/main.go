// Command watcher looks after the demo's server from inside the allocation, with Nomad's own Go SDK and nothing else:
// it reads its allocation, waits for the checks, sends the server a signal and restarts it, and prints what it saw. The
// same program runs unchanged as a task on a Nomad client.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// timeLimit bounds the whole tour. It takes about two seconds; a slow machine gets a minute.
const timeLimit = time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	// A sidecar stays: its end would be taken for a fault.
	<-ctx.Done()
}

func run(ctx context.Context) error {
	w, err := newWatcher(config{
		Address:   os.Getenv("NOMAD_UNIX_ADDR"),
		TokenFile: filepath.Join(os.Getenv("NOMAD_SECRETS_DIR"), "nomad_token"),
		AllocID:   os.Getenv("NOMAD_ALLOC_ID"),
		Task:      os.Getenv("SERVER_TASK"),
		URL:       os.Getenv("SERVER_URL"),
		Out:       os.Stdout,
	})
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	return w.tour(bounded)
}
