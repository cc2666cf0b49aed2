// Package ports gives an allocation its ports. It finds free ports for dynamic labels, makes sure that static ports are
// free, and keeps others away from both until the tasks bind them.
//
// Two mechanisms hold a port. A bound TCP socket and a bound UDP socket keep every program of the machine away until
// ReleaseSockets; then the tasks may bind the port, late or never. A port lock keeps other allocations of the same user
// away until Close, and beyond that while another process has the lock from Locks, or any process of the allocation is
// left. Only between ReleaseSockets and the task's own bind can another user's program take the port.
package ports

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/proc"
)

// The range of dynamic ports is Nomad's (min_dynamic_port, max_dynamic_port). It is below the kernel's own range for
// outgoing connections, which starts at 32768.
const (
	DefaultFirst = 20000
	DefaultLast  = 32000
)

// DefaultHostIP is the address of ports unless the operator gives another: a workload is not reachable from outside by
// default.
const DefaultHostIP = "127.0.0.1"

// The errors of Allocate, wrapped with label and port.
var (
	// ErrTaken: somebody has the port.
	ErrTaken = errors.New("port is already in use")
	// ErrExhausted: no port of the range is free.
	ErrExhausted = errors.New("no free port")
	// ErrInvalid: the job has an impossible port or address.
	ErrInvalid = errors.New("invalid network")
	// ErrHostIP: the address is not one of this machine's.
	ErrHostIP = errors.New("host address can't be used")
	// ErrPermission: a privileged port, and we are not root.
	ErrPermission = errors.New("port is privileged")
)

// Config says what to reserve.
type Config struct {
	// Networks are those of interfaces.Networks. They are not changed.
	Networks []*api.NetworkResource

	// HostIP is the address of the ports; empty is DefaultHostIP. Allocations may have the same port on different
	// addresses. A wildcard means all addresses.
	HostIP string

	// Owner is the directory of the allocation that has the ports. A lock that another process has for the same owner
	// is the allocation's own.
	Owner string

	// Left reports whether processes of another owner are left, although nobody has its locks; nil for no.
	Left func(owner string) bool

	// First and Last are the range of dynamic ports; both zero is the default range.
	First, Last int
}

// Reservation is a set of ports that are held. Its data never change.
type Reservation struct {
	networks []*api.NetworkResource
	mappings []api.PortMapping
	ports    []*reservedPort
	owner    string
	warnings []error

	privileged bool
}

// Allocate reserves every port of the networks, or none. Errors: ErrTaken, ErrExhausted, ErrInvalid, ErrHostIP,
// ErrPermission.
func Allocate(cfg Config) (*Reservation, error) { return Reacquire(cfg, nil) }

// Networks returns the networks with their address and the value of every port.
func (r *Reservation) Networks() []*api.NetworkResource { return r.networks }

// Mappings returns the ports of the networks. Static ports come first, as in Nomad.
func (r *Reservation) Mappings() []api.PortMapping { return r.mappings }

// Privileged reports whether a static port can be bound only by root or with CAP_NET_BIND_SERVICE.
func (r *Reservation) Privileged() bool { return r.privileged }

// Warnings returns the port locks that could not be taken: another allocation may take those ports.
func (r *Reservation) Warnings() []error { return r.warnings }

// Locks returns the port locks that this process has, so that another process can keep them, too. The Reservation
// closes them. Locks that could not be taken before are tried once more.
func (r *Reservation) Locks() []*os.File {
	var files []*os.File
	for _, h := range r.ports {
		if len(h.locks) == 0 || h.shared {
			_ = h.lockPort(r.owner) // Warnings has said it
		}
		files = append(files, h.locks...)
	}
	return files
}

// ReleaseSockets lets the tasks bind the ports. It is called just before the first start, and may be called again.
func (r *Reservation) ReleaseSockets() {
	for _, h := range r.ports {
		h.releaseSockets()
	}
}

// Close releases the ports. It may be called again.
func (r *Reservation) Close() error {
	for _, h := range r.ports {
		h.close()
	}
	return nil
}

// allocator makes one Reservation.
type allocator struct {
	*Reservation
	cfg    Config
	ip     netip.Addr
	held   map[string]int // earlier values, by label
	labels map[string]bool
}

// Reacquire locks the ports of an earlier reservation again, for tasks that may be running and have them; held are the
// ports of that time. It binds no sockets. A port lock that can't be taken again is one of Warnings. A label that held
// does not have gets a port as from Allocate, with its errors.
func Reacquire(cfg Config, held []api.PortMapping) (_ *Reservation, err error) {
	cfg.HostIP = cmp.Or(cfg.HostIP, DefaultHostIP)
	if cfg.First == 0 && cfg.Last == 0 {
		cfg.First, cfg.Last = DefaultFirst, DefaultLast
	}
	ip, err := parseHostIP(cfg.HostIP)
	if err != nil {
		return nil, err
	}
	if cfg.First < 1 || cfg.Last > maxPort || cfg.First > cfg.Last {
		return nil, fmt.Errorf("%w: dynamic ports from %d to %d; want a range within 1 to %d", ErrInvalid, cfg.First,
			cfg.Last, maxPort)
	}
	a := &allocator{Reservation: &Reservation{owner: cfg.Owner}, cfg: cfg, ip: ip, held: map[string]int{},
		labels: map[string]bool{}}
	for _, p := range held {
		a.held[p.Label] = p.Value
	}
	if err := a.reserve(); err != nil {
		a.Close()
		return nil, err
	}
	return a.Reservation, nil
}

const maxPort = 1<<16 - 1

// reserve fills copies of the networks. All static ports are reserved first, so that no dynamic port takes theirs.
func (a *allocator) reserve() error {
	for _, n := range a.cfg.Networks {
		c := *n
		c.IP = a.cfg.HostIP
		c.ReservedPorts, c.DynamicPorts = slices.Clone(n.ReservedPorts), slices.Clone(n.DynamicPorts)
		a.networks = append(a.networks, &c)
	}
	for _, take := range []struct {
		ports func(*api.NetworkResource) []api.Port
		one   func(*api.Port) error
	}{
		{func(n *api.NetworkResource) []api.Port { return n.ReservedPorts }, a.static},
		{func(n *api.NetworkResource) []api.Port { return n.DynamicPorts }, a.dynamic},
	} {
		for _, n := range a.networks {
			for i := range take.ports(n) {
				p := &take.ports(n)[i]
				if err := a.port(p, take.one); err != nil {
					return err
				}
				a.mappings = append(a.mappings, api.PortMapping{Label: p.Label, Value: p.Value, To: p.To,
					HostIP: a.cfg.HostIP})
			}
		}
	}
	return nil
}

// port checks the attributes that all ports have, and fills p.
func (a *allocator) port(p *api.Port, one func(*api.Port) error) error {
	if a.labels[p.Label] {
		return fmt.Errorf("%w: port label %q is used twice", ErrInvalid, p.Label)
	}
	a.labels[p.Label] = true
	if p.HostNetwork = cmp.Or(p.HostNetwork, "default"); p.HostNetwork != "default" {
		return fmt.Errorf("%w: port %q wants host_network %q; there is only \"default\" here", ErrInvalid, p.Label,
			p.HostNetwork)
	}
	if p.To < -1 || p.To > maxPort {
		return fmt.Errorf("%w: port %q maps to %d; want 0 to %d, or -1 for the host's port", ErrInvalid, p.Label, p.To,
			maxPort)
	}
	if err := one(p); err != nil {
		return fmt.Errorf("port %q: %w", p.Label, err)
	}
	if p.To == -1 {
		p.To = p.Value
	}
	return nil
}

func (a *allocator) static(p *api.Port) error {
	if p.Value < 1 || p.Value > maxPort {
		return fmt.Errorf("%w: static port %d; want 1 to %d", ErrInvalid, p.Value, maxPort)
	}
	a.privileged = a.privileged || p.Value < proc.FirstUnprivilegedPort()
	if p.IgnoreCollision { // the tasks of several allocations may share it, by SO_REUSEPORT
		return nil
	}
	return a.reserveOne(p.Value, options{lockOnly: a.held[p.Label] == p.Value, static: true})
}

func (a *allocator) dynamic(p *api.Port) error {
	if p.Value = a.held[p.Label]; p.Value != 0 {
		return a.reserveOne(p.Value, options{lockOnly: true})
	}
	span := a.cfg.Last - a.cfg.First + 1
	begin := rand.IntN(span) // random, so that the port of a task that just ended is not the next one's
	for i := range span {
		port := a.cfg.First + (begin+i)%span
		err := a.reserveOne(port, options{})
		if err == nil {
			p.Value = port
			return nil
		}
		if !errors.Is(err, ErrTaken) {
			return err
		}
	}
	return fmt.Errorf("%w in %d to %d on %s", ErrExhausted, a.cfg.First, a.cfg.Last, a.cfg.HostIP)
}

// options say how a port is taken.
type options struct {
	lockOnly bool // a task may have it already
	static   bool // no other would do
}

// reserveOne locks a port and binds it. A failed lock is an error if another allocation has it, and otherwise a
// warning; for a port that a task may have already it is always a warning. Errors: ErrTaken, ErrHostIP, ErrPermission.
func (a *allocator) reserveOne(port int, o options) error {
	h := &reservedPort{at: netip.AddrPortFrom(a.ip, uint16(port)), left: a.cfg.Left}
	warning := h.lockPort(a.cfg.Owner)
	if !o.lockOnly {
		err := warning
		if !errors.Is(warning, ErrTaken) {
			err = h.bindAll(o.static)
		}
		if err != nil {
			h.close()
			return err
		}
	}
	if warning != nil {
		a.warnings = append(a.warnings, warning)
	}
	a.ports = append(a.ports, h)
	return nil
}
