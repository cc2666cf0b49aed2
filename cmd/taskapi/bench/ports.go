package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
)

// A round of ports: as many connections, from as many clients at once, while the server is restarted as often.
const (
	portConnections = 10_000
	portClients     = 8
	portRestarts    = 20
)

// portBlocks are the group's port, and portMeta has the keeper keep its socket.
const (
	portBlocks = `
    network {
      port "http" {}
    }
`
	portMeta = `
      meta {
        taskapi_listen = "http"
      }
`
)

// portRole is a server that answers each connection with a word and closes it. It takes the socket that is kept for it,
// or listens itself. When ctx ends it answers those whom it has accepted.
func portRole(ctx context.Context, _ []string) (err error) {
	var listener net.Listener
	if os.Getenv("LISTEN_FDS") != "" {
		listener, err = net.FileListener(os.NewFile(3, "http"))
	} else {
		listener, err = net.Listen("tcp", os.Getenv("NOMAD_ADDR_http"))
	}
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	var answers sync.WaitGroup
	defer answers.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		answers.Go(func() {
			fmt.Fprintln(conn, "ok")
			conn.Close()
		})
	}
}

// keptPort measures a socket that is kept, ownPort one that the task opens itself.
func (env *environment) keptPort(ctx context.Context, _ options) ([]sample, error) {
	return env.restarted(ctx, portMeta)
}

func (env *environment) ownPort(ctx context.Context, _ options) ([]sample, error) {
	return env.restarted(ctx, "")
}

// outcome counts how connections have ended.
type outcome struct {
	begun, refused, lost atomic.Int64
	longest              atomic.Int64 // of those that were answered, in nanoseconds
}

// restarted restarts a server again and again, beside clients.
func (env *environment) restarted(ctx context.Context, meta string) (_ []sample, err error) {
	task := fmt.Sprintf(taskBlock, 0, meta, env.self, `"role-port"`)
	s, err := env.agent(env.path(".data"), fmt.Sprintf(jobFile, portBlocks+task))
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	address := ""
	if err := s.until(ctx, "the server", startTime, 20*time.Millisecond, func() bool {
		alloc, err := s.allocation()
		if err != nil || alloc.AllocatedResources == nil || len(alloc.AllocatedResources.Shared.Ports) == 0 {
			return false
		}
		port := alloc.AllocatedResources.Shared.Ports[0]
		address = net.JoinHostPort(port.HostIP, fmt.Sprint(port.Value))
		return connect(ctx, address) == nil
	}); err != nil {
		return nil, err
	}
	var o outcome
	var clients sync.WaitGroup
	for range portClients {
		clients.Go(func() { o.connectAgainAndAgain(ctx, address) })
	}
	sdk, err := s.operator()
	if err == nil {
		defer sdk.Close()
		err = o.restart(ctx, s, sdk)
	}
	clients.Wait()
	if err != nil {
		return nil, err
	}
	return []sample{
		{fmt.Sprintf("refused of %d connections, %d restarts", portConnections, portRestarts), count,
			float64(o.refused.Load())},
		{"lost after they were made", count, float64(o.lost.Load())},
		timeSample("the longest time until an answer", time.Duration(o.longest.Load())),
	}, nil
}

func count(n float64) string { return fmt.Sprintf("%.0f", n) }

// restart restarts the server at equal numbers of connections.
func (o *outcome) restart(ctx context.Context, s *agent, sdk *api.Client) error {
	for i := range portRestarts {
		for ctx.Err() == nil && o.begun.Load() < int64((i+1)*portConnections/(portRestarts+1)) {
			time.Sleep(time.Millisecond)
		}
		err := s.until(ctx, "the server to run", startTime, 5*time.Millisecond, func() bool { // it may be on its way yet
			return sdk.Allocations().Restart(&api.Allocation{ID: s.allocID}, "t0", nil) == nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// connectAgainAndAgain makes connections until all clients together have made enough.
func (o *outcome) connectAgainAndAgain(ctx context.Context, address string) {
	for ctx.Err() == nil && o.begun.Add(1) <= portConnections {
		began := time.Now()
		switch err := connect(ctx, address); {
		case errors.Is(err, syscall.ECONNREFUSED):
			o.refused.Add(1)
		case err != nil:
			o.lost.Add(1)
		default:
			took := int64(time.Since(began))
			for was := o.longest.Load(); took > was && !o.longest.CompareAndSwap(was, took); was = o.longest.Load() {
			}
		}
	}
}

// connect makes a connection and reads the answer.
func connect(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: startTime}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(startTime)) // fails on a closed connection only, which reading shows
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer) != "ok\n" {
		err = fmt.Errorf("the answer was %q", answer)
	}
	return err
}
