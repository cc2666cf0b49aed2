package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/disk"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/interfaces"
)

// registered is how many services one allocation registers: far more than most have.
const registered = 1000

// A servicesReport is how long services take that one allocation registers, and another one's taskapi answers for, in milliseconds.
type servicesReport struct {
	Register   figure // all, in one call
	Again      figure // the same ones, of which none has changed
	Seen       figure // from the call's beginning until a blocking query of the other taskapi has the first of them
	List       figure // GET /v1/services
	Get        figure // GET /v1/service/:name, of one of them
	Deregister figure // all, in one call
}

// measureServices registers services beside a running taskapi.
func measureServices(ctx context.Context, env *environment, o options) (_ *servicesReport, err error) {
	s, err := env.group(ctx, sleepers(1), 1)
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	store := disk.New(filepath.Join(filepath.Dir(filepath.Dir(s.dir)), "cluster"))
	defer store.Close()
	alloc := &api.Allocation{ID: "bbbbbbbb-0000-4000-8000-000000000000", Namespace: "default", JobID: "bench"}
	lease, err := store.Hold(ctx, alloc.ID)
	if err != nil {
		return nil, err
	}
	defer lease.Close()
	provider := registry.New(store).Provider(alloc, slog.New(slog.DiscardHandler))
	var services []*interfaces.ServiceInstance
	var ids []string
	for i := range registered {
		name := fmt.Sprintf("service-%04d", i)
		id := "_nomad-task-" + alloc.ID + "-group-g-" + name + "-http"
		services, ids = append(services, &interfaces.ServiceInstance{
			ID: id, Name: name, Tags: []string{"one", "two"}, Address: "127.0.0.1", Port: 20000 + i,
			Namespace: alloc.Namespace, JobID: alloc.JobID, AllocID: alloc.ID, NodeID: alloc.ID, Datacenter: "dc1",
		}), append(ids, id)
	}
	var rounds [6][]float64
	for range o.rounds {
		var index uint64
		seen := make(chan error, 1)
		if _, index, err = registry.New(store).Services(ctx, "", ""); err != nil {
			return nil, err
		}
		began := time.Now()
		var since time.Duration
		go func() {
			err := s.lists(fmt.Sprintf("/v1/service/service-0000?index=%d&wait=1m", index), 1)
			since = time.Since(began)
			seen <- err
		}()
		for i, do := range []func() error{
			func() error { return provider.Register(ctx, services) },
			func() error { return provider.Register(ctx, services) },
			func() error { return <-seen },
			func() error { return s.lists("/v1/services", registered) },
			func() error { return s.lists("/v1/service/service-0500", 1) },
			func() error { return provider.Deregister(ctx, ids) },
		} {
			took, err := timed(1, do)
			if err != nil {
				return nil, err
			}
			rounds[i] = append(rounds[i], took/1e3)
		}
		rounds[2][len(rounds[2])-1] = float64(since) / 1e6
	}
	return &servicesReport{
		Register: figureOf(rounds[0]), Again: figureOf(rounds[1]), Seen: figureOf(rounds[2]), List: figureOf(rounds[3]), Get: figureOf(rounds[4]),
		Deregister: figureOf(rounds[5]),
	}, nil
}

// lists makes sure that so many services are answered.
func (s *agent) lists(path string, want int) error {
	r, err := s.asOperator(func(token string) []byte { return get(path, token) })
	if err != nil {
		return err
	}
	var all []struct{ Services []json.RawMessage }
	if r.status != http.StatusOK || json.Unmarshal(r.body, &all) != nil {
		return fmt.Errorf("%s: status %d", path, r.status)
	}
	found := len(all)
	if found == 1 && len(all[0].Services) > 0 {
		found = len(all[0].Services)
	}
	if found != want {
		return errors.New(path + ": " + fmt.Sprintf("%d services, want %d", found, want))
	}
	return nil
}

func (r *servicesReport) print(w io.Writer) {
	fmt.Fprintf(w, "%d services of one allocation\tmedian (spread)\n", registered)
	fmt.Fprintf(w, "register them\t%s\n", r.Register.in("ms", 1, 1))
	fmt.Fprintf(w, "again, unchanged\t%s\n", r.Again.in("ms", 1, 1))
	fmt.Fprintf(w, "until a query of another taskapi has the first\t%s\n", r.Seen.in("ms", 1, 1))
	fmt.Fprintf(w, "GET /v1/services\t%s\n", r.List.in("ms", 1, 1))
	fmt.Fprintf(w, "GET /v1/service/:name\t%s\n", r.Get.in("ms", 1, 2))
	fmt.Fprintf(w, "deregister them\t%s\n\n", r.Deregister.in("ms", 1, 1))
}
