package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/identity"
	"taskapi/internal/wake"
)

// The store that allocations share is measured with clusterWriters that write at the same time, and clusterServices.
const (
	clusterWriters  = 8
	clusterServices = 100
)

// clusterWays are the store in etcd, that of one machine, and etcd itself by the same client.
func (env *environment) clusterWays() []way {
	return []way{
		{"etcd", func(ctx context.Context, o options) ([]sample, error) {
			return env.withEtcd(ctx, func(c client.Config) ([]sample, error) {
				return storeSamples(ctx, o, etcd.New(etcd.Config{
					Prefix: "bench/",
					Client: func() (client.Config, error) { return c, nil },
					Sealer: func(purpose string) (cluster.Sealer, error) { return identity.NewSealer(make([]byte, 32), purpose) },
				}))
			})
		}},
		{"disk", func(ctx context.Context, o options) ([]sample, error) {
			return storeSamples(ctx, o, disk.New(env.path(".cluster")))
		}},
		{"etcd itself", func(ctx context.Context, o options) ([]sample, error) {
			return env.withEtcd(ctx, func(config client.Config) ([]sample, error) {
				c := client.New(config)
				defer c.Close()
				put, err := each(ctx, o, clusterWriters, func(n int64) error {
					op := client.Op{Put: &client.Put{Key: fmt.Appendf(nil, "bench/%d", n%1000), Value: make([]byte, 300)}}
					_, err := c.Txn(ctx, client.Txn{Success: []client.Op{op}})
					return err
				})
				if err != nil {
					return nil, err
				}
				get, err := each(ctx, o, 1, func(int64) error {
					_, err := c.Range(ctx, client.RangeRequest{Key: []byte("bench/1")})
					return err
				})
				return []sample{{"a put", duration, put}, {"a read", duration, get}}, err
			})
		}},
	}
}

func storeSamples(ctx context.Context, o options, s cluster.Store) ([]sample, error) {
	defer s.Close()
	for n := range clusterServices {
		value := fmt.Appendf(nil, `{"ID":"%d","ServiceName":"web","Address":"10.0.0.1","Port":80,"Tags":["a","b"]}`, n)
		txn := cluster.Txn{Then: []cluster.Operation{{Key: fmt.Sprintf("services/default/web/%d", n), Value: value}}}
		if _, err := s.Commit(ctx, txn); err != nil {
			return nil, err
		}
	}
	put, err := each(ctx, o, clusterWriters, func(n int64) error {
		op := cluster.Operation{Key: fmt.Sprintf("put/%d", n%1000), Value: make([]byte, 300)}
		_, err := s.Commit(ctx, cluster.Txn{Then: []cluster.Operation{op}})
		return err
	})
	if err != nil {
		return nil, err
	}
	get, err := each(ctx, o, 1, func(int64) error { _, _, err := s.Get(ctx, "put/1"); return err })
	if err != nil {
		return nil, err
	}
	services := registry.New(s)
	list, err := each(ctx, o, 1, func(int64) error {
		found, _, err := services.Services(ctx, "default", "web")
		if err == nil && len(found) != clusterServices {
			err = fmt.Errorf("%d services", len(found))
		}
		return err
	})
	return []sample{{"a put", duration, put}, {"a read", duration, get}, {"100 services", duration, list}}, err
}

// each returns how long one call takes, with some callers at the same time.
func each(ctx context.Context, o options, callers int, call func(n int64) error) (float64, error) {
	var calls atomic.Int64
	var failed error
	var once sync.Once
	var all sync.WaitGroup
	begun := time.Now()
	for range callers {
		all.Go(func() {
			for time.Since(begun) < o.of(time.Second) && ctx.Err() == nil {
				if err := call(calls.Add(1)); err != nil {
					once.Do(func() { failed = err })
					return
				}
			}
		})
	}
	all.Wait()
	return float64(time.Since(begun)) / float64(calls.Load()), failed
}

func (env *environment) withEtcd(ctx context.Context, do func(client.Config) ([]sample, error)) ([]sample, error) {
	e, err := env.etcd(ctx)
	if err != nil {
		return nil, err
	}
	defer e.kill()
	return do(client.Config{Endpoints: []string{"http://" + e.address}})
}

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
