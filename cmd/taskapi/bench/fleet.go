package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/identity"
	"taskapi/internal/load"
	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// fleetName is measured only on demand.
const fleetName = "fleet"

const (
	fleetMachines = 20
	fleetReaders  = 2  // allocations of each machine that read the changes of services; all follow the revocations
	probeRounds   = 25 // each changes one thing of each kind
	probePause    = 400 * time.Millisecond
	fleetTimeout  = 10 * time.Minute // for all allocations to be registered
	fleetLook     = 100 * time.Millisecond
	quietTime     = 5 * time.Second
)

// A fleet is machines that share an etcd. Each is a process of the simulator.
type fleet struct {
	env      *environment
	etcd     *etcdServer
	client   *client.Client
	store    *etcd.Store // of the benchmark itself
	key      []byte
	machines []*process
	dirs     []string
	allocs   int // of all machines; each is a client of etcd
}

// fleet measures machines whose allocations are clients of etcd each, as processes of taskapi are.
func (env *environment) fleet(ctx context.Context, o options) (_ []sample, err error) {
	f := &fleet{env: env, key: make([]byte, 32)}
	rand.Read(f.key) // never fails (crypto/rand)
	// The processor is measured, not this machine's disk, which others use.
	if f.etcd, err = env.etcd(ctx, "--unsafe-no-fsync"); err != nil {
		return nil, err
	}
	defer func() { f.etcd.kill() }()
	config := client.Config{Endpoints: []string{"http://" + f.etcd.address}}
	f.client = client.New(config)
	defer f.client.Close()
	f.store = etcd.New(etcd.Config{Prefix: "taskapi/", Client: func() (client.Config, error) { return config, nil },
		Sealer: f.sealer})
	defer f.store.Close()
	defer func() {
		for _, m := range f.machines {
			_ = m.cmd.Process.Signal(syscall.SIGKILL) // the cluster's end is not measured
			<-m.done
		}
	}()
	var all []sample
	for _, part := range []func(context.Context, options) ([]sample, error){
		f.begin, f.rest, f.changes, f.restart, f.storm,
	} {
		samples, err := part(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, samples...)
	}
	return all, nil
}

func (f *fleet) sealer(purpose string) (cluster.Sealer, error) {
	return identity.NewSealer(f.key, purpose)
}

// begin starts all machines, and waits until all allocations are registered and nothing changes any more.
func (f *fleet) begin(ctx context.Context, o options) ([]sample, error) {
	program, err := f.env.simulator(ctx)
	if err != nil {
		return nil, err
	}
	job := f.env.path(".nomad.hcl")
	if err := os.WriteFile(job, []byte(crowdJob), 0o644); err != nil {
		return nil, err
	}
	each := max(1, o.crowd/fleetMachines)
	f.allocs = each * fleetMachines
	began := time.Now()
	for range fleetMachines {
		dir := f.env.path(".data")
		p, err := f.machine(dir, program, "-data-dir", dir, "-allocations", strconv.Itoa(each), "-readers",
			strconv.Itoa(fleetReaders), job)
		if err != nil {
			return nil, err
		}
		f.machines, f.dirs = append(f.machines, p), append(f.dirs, dir)
	}
	if err := f.until(ctx, f.allocs); err != nil {
		return nil, err
	}
	took := time.Since(began)
	if err := f.quiet(ctx); err != nil {
		return nil, err
	}
	samples := []sample{
		timeSample("from the start until all are registered", took),
		timeSample("CPU time of etcd until then", load.CPUTime(f.etcd.cmd.Process.Pid)),
		timeSample("CPU time of all clients until then", f.used().machines),
		{"RSS of etcd", megabytes, float64(rss(f.etcd.cmd.Process.Pid))},
		{"RSS of a machine's process", megabytes, float64(rss(f.machines[0].cmd.Process.Pid))},
	}
	return samples, nil
}

// machine starts a process with a data directory that uses the cluster.
func (f *fleet) machine(dir, program string, args ...string) (*process, error) {
	settings := fmt.Sprintf("cluster {\n  address  = \"etcd://%s\"\n  key_file = \"cluster.key\"\n}\n", f.etcd.address)
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cluster.key"), f.key, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "taskapi.hcl"), []byte(settings), 0o600)
	}
	if err != nil {
		return nil, err
	}
	return start(program, args...)
}

func rss(pid int) uint64 {
	return proc.Bytes(proc.Value(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Rss"))
}

// usage is what the fleet has used so far. A process reads and writes hardly anything but its connections to etcd.
type usage struct {
	at             time.Time
	etcd, machines time.Duration // CPU time
	bytes          uint64
	requests       float64 // that etcd got
}

func (f *fleet) used() usage {
	u := usage{at: time.Now(), etcd: load.CPUTime(f.etcd.cmd.Process.Pid),
		requests: f.metric("grpc_server_msg_received_total", "")}
	for _, m := range f.machines {
		pid := m.cmd.Process.Pid
		u.machines += load.CPUTime(pid)
		for _, key := range []string{"rchar", "wchar"} {
			n, _ := strconv.ParseUint(proc.Value(fmt.Sprintf("/proc/%d/io", pid), key), 10, 64)
			u.bytes += n
		}
	}
	return u
}

// metric returns the sum of etcd's metrics with a name, and with a label if that is not empty.
func (f *fleet) metric(name, label string) (sum float64) {
	answer, err := http.Get("http://" + f.etcd.address + "/metrics")
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), " ")
		if base, _, _ := strings.Cut(key, "{"); base == name && strings.Contains(key, label) {
			n, _ := strconv.ParseFloat(value, 64)
			sum += n
		}
	}
	return sum
}

// count returns how many allocations and services are registered, whichever are fewer, and etcd's revision.
func (f *fleet) count(ctx context.Context) (least int, revision uint64, err error) {
	least = f.allocs
	for _, prefix := range []string{"taskapi/e/fleet/allocs/", "taskapi/e/services/default/bench/"} {
		r, err := f.client.Range(ctx, client.RangeRequest{Key: []byte(prefix), End: client.PrefixEnd(prefix),
			Count: true})
		if err != nil {
			return 0, 0, err
		}
		least, revision = min(least, r.Count), r.Header.Revision
	}
	return least, revision, nil
}

// until waits until that many allocations are registered; with 0, until none is.
func (f *fleet) until(ctx context.Context, wanted int) error {
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	for {
		n, _, err := f.count(ctx)
		if err == nil && n == wanted {
			return nil
		}
		for _, m := range f.machines {
			select {
			case <-m.done:
				return fmt.Errorf("a machine ended: %w\n%s", errors.Join(m.err), &m.output)
			default:
			}
		}
		if wake.Sleep(ctx, fleetLook) != nil {
			return fmt.Errorf("%d of %d allocations are registered: %w", n, wanted, errors.Join(err, ctx.Err()))
		}
	}
}

// quiet waits until the store has not changed for some seconds.
func (f *fleet) quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	for before := uint64(0); ; {
		if err := wake.Sleep(ctx, quietTime); err != nil {
			return fmt.Errorf("wait until the fleet is at rest: %w", err)
		}
		_, revision, err := f.count(ctx)
		if err == nil && revision == before {
			return nil
		}
		before = revision
	}
}

// rest measures what the fleet uses when nothing changes.
func (f *fleet) rest(ctx context.Context, o options) ([]sample, error) {
	before := f.used()
	if err := wake.Sleep(ctx, o.of(15*time.Second)); err != nil {
		return nil, err
	}
	u := f.used()
	seconds := u.at.Sub(before.at).Seconds()
	each := float64(f.allocs)
	return []sample{
		{"at rest: requests to etcd", perSecond, (u.requests - before.requests) / seconds},
		{"at rest: CPU of etcd", cores, (u.etcd - before.etcd).Seconds() / seconds},
		{"at rest: CPU of each client", cores, (u.machines - before.machines).Seconds() / seconds / each},
		{"at rest: bytes of each client", bytesPerSecond, float64(u.bytes-before.bytes) / seconds / each},
	}, nil
}

func perSecond(n float64) string      { return fmt.Sprintf("%.0f/s", n) }
func bytesPerSecond(n float64) string { return fmt.Sprintf("%.0f B/s", n) }
func cores(n float64) string          { return fmt.Sprintf("%.3f %%", 100*n) }
