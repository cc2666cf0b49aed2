package checks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
)

// The states of a check.
const (
	pending = "pending"
	success = "success"
	failure = "failure"
)

// check is one check, with everything resolved.
type check struct {
	about    api.AllocCheckStatus // what does not change from run to run
	interval time.Duration
	timeout  time.Duration
	probe    func(ctx context.Context) outcome
}

// outcome is what one run found.
type outcome struct {
	status string
	code   int // of an HTTP answer, else 0
	output string
}

func (c *check) run(ctx context.Context) outcome {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.probe(ctx)
}

// resolver turns a service's checks into runnable ones.
type resolver struct {
	cfg     Config
	task    string // whose service it is, empty for the group's
	service *api.Service
	name    string // of the service, interpolated
}

func fromService(cfg Config, task string, s *api.Service) ([]check, error) {
	if s.Provider != ProviderNomad {
		return nil, nil
	}
	r := resolver{cfg: cfg, task: task, service: s}
	r.name = r.replace(s.Name)
	var list []check
	for _, c := range s.Checks {
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

// interpolate returns a copy of c with its text interpolated.
func (r *resolver) interpolate(c api.ServiceCheck) api.ServiceCheck {
	for _, field := range []*string{&c.Name, &c.Type, &c.Path, &c.Protocol, &c.PortLabel, &c.Method, &c.Body, &c.TLSServerName} {
		*field = r.replace(*field)
	}
	headers := make(map[string][]string, len(c.Header))
	for key, values := range c.Header {
		for _, v := range values {
			headers[r.replace(key)] = append(headers[r.replace(key)], r.replace(v))
		}
	}
	c.Header = headers
	c.TaskName = cmp.Or(r.task, c.TaskName)
	return c
}

// label is the check's name: Nomad's default when it has none.
func (r *resolver) label(c api.ServiceCheck) string {
	return cmp.Or(c.Name, fmt.Sprintf("service: %q check", r.name))
}

func (r *resolver) resolve(c api.ServiceCheck) (check, error) {
	if c.Interval <= 0 || c.Timeout <= 0 {
		return check{}, fmt.Errorf("interval is %v and timeout %v; both must be above 0", c.Interval, c.Timeout)
	}
	c.Name = r.label(c)
	c.OnUpdate = cmp.Or(c.OnUpdate, api.OnUpdateRequireHealthy)
	address, err := r.address(c)
	if err != nil {
		return check{}, err
	}
	out := check{interval: c.Interval, timeout: c.Timeout, about: api.AllocCheckStatus{
		ID: checkID(r.cfg.Alloc, c), Check: c.Name, Group: r.cfg.Alloc.Name,
		Service: r.name, Task: c.TaskName, Mode: "healthiness",
	}}
	if c.OnUpdate == api.OnUpdateIgnore {
		out.about.Mode = "readiness"
	}
	switch c.Type {
	case "tcp":
		out.probe = tcpProbe(r.cfg.DialContext, address)
	case "http":
		out.probe, err = r.http(c, address)
	default:
		err = fmt.Errorf("type %q; want http or tcp", c.Type)
	}
	return out, err
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
	base := &url.URL{Scheme: protocol, Host: address}
	target, err := base.Parse(c.Path)
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", c.Path, err)
	}
	if target.Host != base.Host || target.Scheme != base.Scheme || target.User != nil {
		return nil, fmt.Errorf("path %q names a server; want a path alone", c.Path)
	}
	method := cmp.Or(c.Method, http.MethodGet)
	if _, err := http.NewRequest(method, target.String(), nil); err != nil {
		return nil, err
	}
	p := httpProbe{
		client: newClient(r.cfg.DialContext, c), method: method, url: target.String(),
		header: header(c.Header, r.cfg.Version), body: []byte(c.Body),
	}
	return p.run, nil
}

// header has the check's own headers, which may replace our User-Agent.
func header(own map[string][]string, version string) http.Header {
	h := http.Header{}
	h.Set("User-Agent", "taskapi/"+cmp.Or(version, "unknown"))
	for key, values := range own {
		h.Del(key)
		for _, v := range values {
			h.Add(key, v)
		}
	}
	return h
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
func distinguish(list []check) {
	seen := map[string]bool{}
	for i := range list {
		about := &list[i].about
		for n := 1; seen[about.ID]; n++ {
			sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", about.ID, about.Service, n))
			about.ID = hex.EncodeToString(sum[:])
		}
		seen[about.ID] = true
	}
}
