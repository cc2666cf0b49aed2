package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/cmd/taskapi/internal/tokensync"
	"taskapi/identity/revocation"
	"taskapi/internal/wake"
)

// A probe is a change that all machines have to see.
type probe struct {
	kind  string
	began time.Time
	index uint64 // of the store; 0 for a revocation
	token string // of a revocation
}

// changes measures how soon all machines see a change, and what it costs.
func (f *fleet) changes(ctx context.Context, _ options) ([]sample, error) {
	quiet := f.used()
	if err := wake.Sleep(ctx, 5*time.Second); err != nil {
		return nil, err
	}
	before := f.used()
	probes, err := f.probe(ctx, probeRounds)
	if err != nil {
		return nil, err
	}
	if err := wake.Sleep(ctx, 5*time.Second); err != nil {
		return nil, err
	}
	u := f.used()
	// What the fleet uses at rest is not counted.
	rest := u.at.Sub(before.at).Seconds() / before.at.Sub(quiet.at).Seconds()
	n := float64(len(probes))
	less := func(after, before, quiet float64) float64 { return max(0, after-before-rest*(before-quiet)) / n }
	samples := []sample{
		{"a change: CPU time of etcd", duration, less(float64(u.etcd), float64(before.etcd), float64(quiet.etcd))},
		{"a change: CPU time of each client", duration,
			less(float64(u.machines), float64(before.machines), float64(quiet.machines)) / float64(f.allocs)},
		{"a change: bytes of each client", func(n float64) string { return fmt.Sprintf("%.0f B", n) },
			less(float64(u.bytes), float64(before.bytes), float64(quiet.bytes)) / float64(f.allocs)},
		{"a change: requests to etcd", func(n float64) string { return fmt.Sprintf("%.1f", n) },
			less(u.requests, before.requests, quiet.requests)},
	}
	took := map[string][]time.Duration{}
	for _, p := range probes {
		seen, err := f.seen(p)
		if err != nil {
			return nil, err
		}
		took[p.kind] = append(took[p.kind], seen.Sub(p.began))
		took["any change"] = append(took["any change"], seen.Sub(p.began))
	}
	for _, kind := range []string{"any change", "variable", "service", "status", "revocation"} {
		slices.Sort(took[kind])
		samples = append(samples, timeSample("all machines see it, "+kind+", p50", took[kind][len(took[kind])/2]),
			timeSample("all machines see it, "+kind+", p99", took[kind][len(took[kind])*99/100]))
	}
	return samples, nil
}

// probe changes things of each kind.
func (f *fleet) probe(ctx context.Context, rounds int) (probes []probe, err error) {
	sealer, err := f.sealer("variables")
	if err != nil {
		return nil, err
	}
	vars := variables.New(variables.Config{Store: f.store, Sealer: sealer})
	for range rounds {
		for _, kind := range []string{"variable", "service", "status", "revocation"} {
			p := probe{kind: kind, began: time.Now(), token: rand.Text()}
			switch kind {
			case "variable":
				_, p.index, err = vars.Put(ctx, &api.Variable{Namespace: "default", Path: "probe",
					Items: api.VariableItems{"a": p.token}}, nil)
			case "service":
				p.index, err = f.put(ctx, "services/default/probe/1", `{"ID":"1","ServiceName":"probe","Address":"10.0.0.1",`+
					`"Port":80,"Namespace":"default","Tags":["%s"]}`, p.token)
			case "status":
				id := "00000000-0000-4000-8000-000000000000"
				p.index, err = f.put(ctx, "fleet/allocs/"+id, `{"ID":"`+id+`","ClientStatus":"%s"}`, p.token)
			case "revocation":
				p.index, err = 0, f.revoke(ctx, p.token)
			}
			if err != nil {
				return nil, fmt.Errorf("change a %s: %w", kind, err)
			}
			probes = append(probes, p)
			if err := wake.Sleep(ctx, probePause); err != nil {
				return nil, err
			}
		}
	}
	return probes, nil
}

func (f *fleet) put(ctx context.Context, key, value, token string) (uint64, error) {
	op := cluster.Operation{Key: key, Value: fmt.Appendf(nil, value, token)}
	return f.store.Commit(ctx, cluster.Txn{Then: []cluster.Operation{op}})
}

// revoke revokes a token as the command does.
func (f *fleet) revoke(ctx context.Context, token string) error {
	list, err := revocation.Open(revocation.Config{Dir: f.env.path(".revocations")})
	if err != nil {
		return err
	}
	defer list.Close()
	if _, err := list.Add(revocation.Rule{TokenID: token}); err != nil {
		return err
	}
	return tokensync.Publish(ctx, f.store, list)
}

// seen returns when the last machine saw a change.
func (f *fleet) seen(p probe) (last time.Time, err error) {
	for _, dir := range f.dirs {
		text, err := os.ReadFile(filepath.Join(dir, "seen"))
		if err != nil {
			return last, err
		}
		var at time.Time
		for line := range strings.Lines(string(text)) {
			if at = p.at(line); !at.IsZero() {
				break
			}
		}
		if at.IsZero() {
			return last, fmt.Errorf("%s has not seen the change of a %s", filepath.Base(dir), p.kind)
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}

// at returns the time in a line that a machine has written about the change; zero for other lines.
func (p probe) at(line string) time.Time {
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[0] != p.kind {
		return time.Time{}
	}
	if index, err := strconv.ParseUint(fields[1], 10, 64); fields[1] != p.token && (err != nil || index < p.index) {
		return time.Time{}
	}
	nanoseconds, _ := strconv.ParseInt(fields[2], 10, 64)
	return time.Unix(0, nanoseconds)
}

// restart kills etcd and starts it again. Its leases live on.
func (f *fleet) restart(ctx context.Context, _ options) ([]sample, error) {
	f.etcd.kill()
	began := time.Now()
	if err := f.etcd.start(ctx); err != nil {
		return nil, err
	}
	probes, err := f.probe(ctx, 1)
	if err != nil {
		return nil, err
	}
	least, seen := f.allocs, time.Time{}
	for time.Since(began) < 30*time.Second { // twice as long as leases live
		if n, _, err := f.count(ctx); err == nil {
			least = min(least, n)
		}
		if err := wake.Sleep(ctx, fleetLook); err != nil {
			return nil, err
		}
	}
	for _, p := range probes {
		at, err := f.seen(p)
		if err != nil {
			return nil, err
		}
		if at.After(seen) {
			seen = at
		}
	}
	return []sample{
		timeSample("etcd killed: until all machines see a change", seen.Sub(began)),
		{"etcd killed: registrations that were lost", number, float64(f.allocs - least)},
	}, nil
}

func number(n float64) string { return fmt.Sprintf("%.0f", n) }

// storm cuts all machines off until every lease has ended, and lets them come back in one moment.
func (f *fleet) storm(ctx context.Context, _ options) ([]sample, error) {
	for _, m := range f.machines {
		if err := m.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			return nil, err
		}
	}
	if err := f.until(ctx, 0); err != nil {
		return nil, err
	}
	_, first, err := f.count(ctx)
	if err != nil {
		return nil, err
	}
	const txns = `grpc_method="Txn"`
	before, sent := f.used(), f.metric("grpc_server_handled_total", txns)
	for _, m := range f.machines {
		if err := m.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			return nil, err
		}
	}
	most, revision, last := 0.0, first, before.at
	for n := 0; n < f.allocs; {
		if err := wake.Sleep(ctx, 10*fleetLook); err != nil {
			return nil, err
		}
		if time.Since(before.at) > fleetTimeout {
			return nil, fmt.Errorf("%d of %d allocations are registered again", n, f.allocs)
		}
		var now uint64
		if n, now, err = f.count(ctx); err != nil {
			n = 0 // etcd is busy
			continue
		}
		most = max(most, float64(now-revision)/time.Since(last).Seconds())
		revision, last = now, time.Now()
	}
	took := time.Since(before.at)
	if err := f.quiet(ctx); err != nil {
		return nil, err
	}
	if _, revision, err = f.count(ctx); err != nil {
		return nil, err
	}
	u := f.used()
	writes := float64(revision - first)
	return []sample{
		timeSample("all cut off: until all are registered again", took),
		{"all cut off: writes until nothing changes", number, writes},
		{"all cut off: writes that etcd refused, since others were first", number,
			f.metric("grpc_server_handled_total", txns) - sent - writes},
		{"all cut off: writes in the busiest second", perSecond, most},
		timeSample("all cut off: CPU time of etcd", u.etcd-before.etcd),
		timeSample("all cut off: CPU time of all clients", u.machines-before.machines),
		{"all cut off: bytes of each client", megabytes, float64(u.bytes-before.bytes) / float64(f.allocs)},
	}, nil
}
