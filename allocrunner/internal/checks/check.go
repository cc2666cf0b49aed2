package checks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/services"
)

// check is a resolved check. It never changes.
type check struct {
	definition
	thresholds thresholds
	probe      func(ctx context.Context) outcome
}

// definition identifies a check. Checks with equal definitions are the same check.
type definition struct {
	about api.AllocCheckStatus // the fields that no run changes; Task is empty for a check of the group
	spec  api.ServiceCheck     // interpolated
	// Where it connects to, or the ID of the service if its provider checks it; empty for a script.
	address string
}

// outcome is the result of one run.
type outcome struct {
	ok      bool
	none    bool // nothing is known yet; nothing else is set
	warning bool // a script's exit code says warning; not ok
	code    int  // of an HTTP answer, else 0
	output  string
}

func failed(output string) outcome { return outcome{output: output} }

func (c *check) run(ctx context.Context) outcome {
	ctx, cancel := context.WithTimeout(ctx, c.spec.Timeout)
	defer cancel()
	return c.probe(ctx)
}

// The first run of a check waits at most maxSpread, and at most one spreadPart-th of its interval. So checks that begin
// together run one after the other, and the first results still come soon.
const (
	maxSpread  = 200 * time.Millisecond
	spreadPart = 10
)

// spread returns how long the first run waits. It is always the same for one check, and differs between checks.
func (c *check) spread() time.Duration {
	window := min(c.spec.Interval/spreadPart, maxSpread)
	id, err := strconv.ParseUint(c.about.ID[:8], 16, 32)
	if err != nil {
		panic("checks: an ID is hexadecimal: " + err.Error()) // checkID made it
	}
	return time.Duration(uint64(window) * id >> 32)
}

// prepare resolves every check of the group's and the tasks' services.
func prepare(cfg Config) ([]*check, error) {
	group := cfg.Alloc.GetTaskGroup()
	if group == nil {
		return nil, fmt.Errorf("%w: the job has no group %q", ErrInvalid, cfg.Alloc.TaskGroup)
	}
	var list []*check
	var errs []error
	shared := clients{}
	for task, s := range services.Of(group) {
		provider, ok := cfg.provider(s.Provider)
		if !ok {
			continue
		}
		service := cfg.Resolve(task, s)
		for n, c := range s.Checks {
			resolved := service.Check(c)
			made, err := cfg.resolve(service, resolved, remote{provider, service.ID(cfg.Alloc), n}, shared)
			if err != nil {
				errs = append(errs, fmt.Errorf("%w: service %q, check %s: %w", ErrInvalid, service.Name,
					interfaces.Quote(resolved.Name), err))
			}
			list = append(list, made)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	distinguish(list)
	return list, nil
}

// provider returns a provider that checks its services itself, nil for another one, and whether the provider exists.
func (cfg *Config) provider(name string) (checking interfaces.CheckingProvider, ok bool) {
	p, ok := cfg.Provider(name)
	checking, _ = p.(interfaces.CheckingProvider)
	return checking, ok || name == services.ProviderNomad
}

func (cfg *Config) resolve(
	service services.Service, c api.ServiceCheck, at remote, shared clients,
) (out *check, err error) {
	elsewhere := at.provider != nil && c.Type != services.TypeScript
	if err := services.Validate(&c, elsewhere); err != nil {
		return nil, err
	}
	c.Notes = "" // nothing here depends on them
	out = &check{thresholds: thresholdsOf(&c), definition: definition{spec: c, about: api.AllocCheckStatus{
		ID: checkID(cfg.Alloc, c), Check: c.Name, Group: cfg.Alloc.Name,
		Service: service.Name, Task: c.TaskName, Mode: "healthiness",
	}}}
	if elsewhere {
		out.thresholds.successes, out.thresholds.failures = 0, 0 // the provider's results have passed the thresholds already
	}
	if c.OnUpdate == api.OnUpdateIgnore {
		out.about.Mode = "readiness"
	}
	if c.Type != services.TypeScript && !elsewhere {
		host, port, err := service.CheckAddress(c)
		if err != nil {
			return nil, err
		}
		out.address = net.JoinHostPort(host, strconv.Itoa(port))
	}
	switch {
	case elsewhere:
		out.probe, out.address = at.probe(c), at.id
	case c.Type == services.TypeTCP:
		out.probe = tcpProbe(cfg.DialContext, out.address)
	case c.Type == services.TypeHTTP:
		out.probe, err = newHTTPProbe(shared.of(c, cfg.DialContext), c, out.address, cfg.Version)
	case c.Type != services.TypeScript:
		err = fmt.Errorf("checks of type %q can't be run here", c.Type)
	case cfg.Exec == nil:
		err = errors.New("script checks can't be run here")
	default:
		out.probe = at.fed(c, scriptProbe(cfg.Exec, c))
	}
	return out, err
}

// checkID returns Nomad's ID for a check of an allocation, which restarts do not change. It is the SHA-256 of the
// fields below, one after the other: texts without separators, durations as 64 bits of nanoseconds, little-endian.
func checkID(alloc *api.Allocation, c api.ServiceCheck) string {
	var b bytes.Buffer
	for _, s := range []string{alloc.ID, alloc.TaskGroup, c.TaskName, c.Name, c.Type, c.PortLabel, c.OnUpdate,
		c.AddressMode} {
		b.WriteString(s)
	}
	for _, d := range []time.Duration{c.Interval, c.Timeout} {
		b.Write(binary.LittleEndian.AppendUint64(nil, uint64(d)))
	}
	for _, s := range []string{c.Protocol, c.Path, c.Method, strconv.FormatBool(c.TLSSkipVerify)} {
		b.WriteString(s)
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:])
}

// distinguish changes equal IDs, such as those of two services that differ only in their port. The first check keeps
// Nomad's ID.
func distinguish(list []*check) {
	seen := map[string]bool{}
	for _, c := range list {
		about := &c.about
		for n := 1; seen[about.ID]; n++ {
			sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", about.ID, about.Service, n))
			about.ID = hex.EncodeToString(sum[:])
		}
		seen[about.ID] = true
	}
}
