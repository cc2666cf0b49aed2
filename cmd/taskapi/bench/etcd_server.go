package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"time"

	"taskapi/internal/wake"
)

type etcdServer struct {
	address string
	args    []string
	cmd     *exec.Cmd
}

// etcd starts a server with no data, and with more flags.
func (env *environment) etcd(ctx context.Context, flags ...string) (*etcdServer, error) {
	var addresses []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, l.Addr().String())
		l.Close()
	}
	here, peer := "http://"+addresses[0], "http://"+addresses[1]
	e := &etcdServer{address: addresses[0], args: append([]string{"--data-dir", env.path(".etcd"),
		"--listen-client-urls", here, "--advertise-client-urls", here, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer, "--logger", "zap",
		"--log-level", "error"}, flags...)}
	return e, e.start(ctx)
}

// start starts the server, for the first time or again, and waits until it accepts connections.
func (e *etcdServer) start(ctx context.Context) error {
	e.cmd = exec.CommandContext(ctx, "etcd", e.args...)
	if err := e.cmd.Start(); err != nil {
		return fmt.Errorf("start etcd, of the package etcd-server: %w", err)
	}
	for {
		conn, err := net.Dial("tcp", e.address)
		if err == nil {
			conn.Close()
			return nil
		}
		if err := wake.Sleep(ctx, 10*time.Millisecond); err != nil {
			e.kill()
			return err
		}
	}
}

func (e *etcdServer) kill() {
	_ = e.cmd.Process.Kill() // it may have ended
	_ = e.cmd.Wait()         // likewise
}
