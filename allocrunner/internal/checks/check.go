package checks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
)

// check is one check, with everything resolved. It never changes.
type check struct {
	definition
	rules rules
	probe func(ctx context.Context) outcome
}

// definition is all that tells one check from another. Checks of equal definitions are the same check.
type definition struct {
	about   api.AllocCheckStatus // what does not change from run to run; its Task is the check's, empty for the group's
	spec    api.ServiceCheck     // interpolated
	address string               // where it connects to, empty for a script
}

func (c *check) same(other *check) bool { return reflect.DeepEqual(c.definition, other.definition) }

// outcome is what one run found.
type outcome struct {
	ok      bool
	warning bool // a script said that it is not well, and not broken either; not ok
	code    int  // of an HTTP answer, else 0
	output  string
}

func failed(output string) outcome { return outcome{output: output} }

func (c *check) run(ctx context.Context) outcome {
	ctx, cancel := context.WithTimeout(ctx, c.spec.Timeout)
	defer cancel()
	return c.probe(ctx)
}

// maxSpread is the most that the first run of a check waits, and spreadPart the part of its interval that it waits at most.
// Checks that begin together so run one after the other, and the first results still come soon.
const (
	maxSpread  = 200 * time.Millisecond
	spreadPart = 10
)

// spread is how long the first run waits: always the same for one check, and another time for another.
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
	shared := newClients(cfg.DialContext)
	var list []*check
	var errs []error
	add := func(task string, services []*api.Service) {
		for _, s := range services {
			r := resolver{cfg: cfg, clients: shared, task: task, service: s}
			more, err := r.checks()
			list, errs = append(list, more...), append(errs, err)
		}
	}
	add("", group.Services)
	for _, t := range group.Tasks {
		add(t.Name, t.Services)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	distinguish(list)
	return list, nil
}

// resolver turns a service's checks into runnable ones.
type resolver struct {
	cfg     Config
	clients *clients
	task    string // whose service it is, empty for the group's
	service *api.Service
	name    string // of the service, interpolated
}

func (r *resolver) checks() ([]*check, error) {
	if r.service.Provider != ProviderNomad {
		return nil, nil
	}
	r.name = r.replace(r.service.Name)
	var list []*check
	for _, c := range r.service.Checks {
		resolved, err := r.resolve(r.interpolate(c))
		if err != nil {
			return nil, fmt.Errorf("%w: service %q, check %q: %w", ErrInvalid, r.name, r.label(c), err)
		}
		list = append(list, resolved)
	}
	return list, nil
}

func (r *resolver) replace(s string) string {
	if r.cfg.Replace == nil {
		return s
	}
	return r.cfg.Replace(r.task, s)
}

// interpolate returns a copy of c with its text interpolated, and with what it has from its service.
func (r *resolver) interpolate(c api.ServiceCheck) api.ServiceCheck {
	for _, field := range []*string{&c.Name, &c.Type, &c.Command, &c.Path, &c.Protocol, &c.PortLabel, &c.Method, &c.Body, &c.TLSServerName} {
		*field = r.replace(*field)
	}
	args := make([]string, len(c.Args))
	for i, arg := range c.Args {
		args[i] = r.replace(arg)
	}
	headers := make(map[string][]string, len(c.Header))
	for key, values := range c.Header {
		for _, v := range values {
			headers[r.replace(key)] = append(headers[r.replace(key)], r.replace(v))
		}
	}
	c.Args, c.Header = args, headers
	c.TaskName = cmp.Or(r.task, c.TaskName, r.service.TaskName)
	c.CheckRestart = r.service.CheckRestart.Merge(c.CheckRestart).Copy()
	c.OnUpdate = cmp.Or(c.OnUpdate, r.service.OnUpdate, api.OnUpdateRequireHealthy)
	c.Notes = "" // nothing here depends on them
	return c
}

// label is the check's name: Nomad's default when it has none.
func (r *resolver) label(c api.ServiceCheck) string {
	return cmp.Or(c.Name, fmt.Sprintf("service: %q check", r.name))
}

func (r *resolver) resolve(c api.ServiceCheck) (*check, error) {
	if c.Interval <= 0 || c.Timeout <= 0 {
		return nil, fmt.Errorf("interval is %v and timeout %v; both must be above 0", c.Interval, c.Timeout)
	}
	c.Name = r.label(c)
	out := &check{rules: rulesOf(&c), definition: definition{spec: c, about: api.AllocCheckStatus{
		ID: checkID(r.cfg.Alloc, c), Check: c.Name, Group: r.cfg.Alloc.Name,
		Service: r.name, Task: c.TaskName, Mode: "healthiness",
	}}}
	if c.OnUpdate == api.OnUpdateIgnore {
		out.about.Mode = "readiness"
	}
	var err error
	if c.Type != typeScript {
		if out.address, err = r.address(c); err != nil {
			return nil, err
		}
	}
	out.probe, err = r.probe(c, out.address)
	return out, err
}

const typeScript = "script"

func (r *resolver) probe(c api.ServiceCheck, address string) (func(context.Context) outcome, error) {
	switch c.Type {
	case "tcp":
		return tcpProbe(r.cfg.DialContext, address), nil
	case "http":
		return r.http(c, address)
	case typeScript:
		return r.script(c)
	}
	return nil, fmt.Errorf("type %q; want http, tcp or script", c.Type)
}

// address is where the check connects to. The check's port and address_mode come before the service's; a number is a port by
// itself, and an address that the service gives replaces the port's.
func (r *resolver) address(c api.ServiceCheck) (string, error) {
	switch mode := cmp.Or(c.AddressMode, r.service.AddressMode, "auto"); mode {
	case "auto", "host":
	default:
		return "", fmt.Errorf("address_mode %q; want auto or host, the only ones without network namespaces", mode)
	}
	label := cmp.Or(c.PortLabel, r.replace(r.service.PortLabel))
	host, port := r.cfg.HostIP, 0
	if r.cfg.Ports != nil {
		for _, p := range r.cfg.Ports(r.task) {
			if p.Label == label {
				host, port = p.HostIP, p.Value
			}
		}
	}
	if n, err := strconv.Atoi(label); port == 0 && err == nil {
		port = n
	}
	if port < 1 || port > 1<<16-1 {
		return "", fmt.Errorf("port %q; want the label of a port of the group, or a number from 1 to 65535", label)
	}
	host = cmp.Or(r.replace(r.service.Address), host)
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// http prepares an HTTP probe. What can't be sent at all is an error here; a header that is none fails its runs, because its value
// may come from the environment.
func (r *resolver) http(c api.ServiceCheck, address string) (func(context.Context) outcome, error) {
	protocol := cmp.Or(c.Protocol, "http")
	if protocol != "http" && protocol != "https" {
		return nil, fmt.Errorf("protocol %q; want http or https", protocol)
	}
	target, err := at(&url.URL{Scheme: protocol, Host: address}, c.Path)
	if err != nil {
		return nil, fmt.Errorf("path %w", err)
	}
	if err := ValidMethod(c.Method); err != nil {
		return nil, fmt.Errorf("method %w", err)
	}
	return newHTTPProbe(r.clients.of(c), c, target.String(), r.cfg.Version)
}

// ValidPath says what is wrong with the path of an HTTP check, whatever its server, nil for nothing.
func ValidPath(path string) error {
	_, err := at(&url.URL{Scheme: "http", Host: "some.invalid"}, path)
	return err
}

// at is a path of a server.
func at(server *url.URL, path string) (*url.URL, error) {
	target, err := server.Parse(path)
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // the rest of it is said here
	}
	if err != nil {
		return nil, fmt.Errorf("%q is no path of a URL: %w; want one such as /health", path, err)
	}
	if target.Host != server.Host || target.Scheme != server.Scheme || target.User != nil {
		return nil, fmt.Errorf("%q names a server; want a path alone, such as /health", path)
	}
	return target, nil
}

// ValidMethod says what is wrong with the method of an HTTP check, nil for nothing; an empty one is GET.
func ValidMethod(method string) error {
	if _, err := http.NewRequest(method, "/", nil); err != nil {
		return fmt.Errorf("%q is no HTTP method; want one such as GET or HEAD", method)
	}
	return nil
}

// script prepares a probe that runs a command of the check's task.
func (r *resolver) script(c api.ServiceCheck) (func(context.Context) outcome, error) {
	switch {
	case c.Command == "":
		return nil, errors.New("a script check needs a command")
	case c.TaskName == "":
		return nil, errors.New("a script check of a group's service must name the task that it runs in")
	case r.cfg.Exec == nil:
		return nil, errors.New("script checks can't be run here")
	}
	return scriptProbe(r.cfg.Exec, c), nil
}

// checkID is Nomad's for the same check of the same allocation, so that it is stable across restarts: the SHA-256 of the fields
// below one after the other, texts without a separator and durations as 64 bits of nanoseconds, least byte first.
func checkID(alloc *api.Allocation, c api.ServiceCheck) string {
	var b bytes.Buffer
	for _, s := range []string{alloc.ID, alloc.TaskGroup, c.TaskName, c.Name, c.Type, c.PortLabel, c.OnUpdate, c.AddressMode} {
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

// distinguish gives checks whose IDs are equal, such as those of two services that differ in their port alone, IDs of their own:
// the first keeps Nomad's.
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
