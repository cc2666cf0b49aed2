// Package services resolves the services of an allocation: their names, their addresses and their checks, with the values that references
// in their text have. It says what a check must be to be run, and runs none.
package services

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// ProviderNomad is the provider of the services that are registered, and whose checks run. Others' are their provider's business.
const ProviderNomad = "nomad"

// Resolver knows what text and ports of services stand for.
type Resolver struct {
	// Replace interpolates text with the environment of a task, or of the allocation for the empty name; nil leaves text as it is.
	Replace func(task, s string) string

	// Ports returns what port labels stand for: the group's, and a task's own when the task is not empty. nil has none.
	Ports func(task string) []api.PortMapping

	// HostIP is the address of a port that is given as a number; empty is 127.0.0.1.
	HostIP string
}

// Service is a service with its text resolved.
type Service struct {
	Task string // whose service it is, empty for the group's
	Name string

	written  *api.Service
	resolver Resolver
}

// Resolve resolves a service of a task, or of the group for the empty name.
func (r Resolver) Resolve(task string, s *api.Service) Service {
	return Service{Task: task, Name: r.text(task, s.Name), written: s, resolver: r}
}

func (r Resolver) text(task, s string) string {
	if r.Replace == nil {
		return s
	}
	return r.Replace(task, s)
}

// Address returns where the service is to be reached.
func (s Service) Address() (host string, port int, err error) {
	return s.address(s.text(s.written.PortLabel), s.written.AddressMode)
}

// CheckAddress returns where a check, as Check returns it, connects to: its port and address_mode come before the service's.
func (s Service) CheckAddress(c api.ServiceCheck) (host string, port int, err error) {
	return s.address(cmp.Or(c.PortLabel, s.text(s.written.PortLabel)), cmp.Or(c.AddressMode, s.written.AddressMode))
}

// address returns the address of a port. An address that the service gives replaces the port's.
func (s Service) address(label, mode string) (host string, port int, err error) {
	if !ValidAddressMode(mode) {
		return "", 0, fmt.Errorf("address_mode is %q: %s", mode, AddressModeWords)
	}
	var ports []api.PortMapping
	if s.resolver.Ports != nil {
		ports = s.resolver.Ports(s.Task)
	}
	found, ok := FindPort(label, ports)
	if !ok {
		return "", 0, fmt.Errorf("port is %q: %s", label, PortWords)
	}
	return cmp.Or(s.text(s.written.Address), found.HostIP, s.resolver.HostIP, "127.0.0.1"), found.Value, nil
}

func (s Service) text(v string) string { return s.resolver.text(s.Task, v) }

// FindPort returns the port of a label. A number is a port by itself, with no address, unless it is a label.
func FindPort(label string, ports []api.PortMapping) (found api.PortMapping, ok bool) {
	for _, p := range ports {
		if p.Label == label {
			return p, true
		}
	}
	n, err := strconv.Atoi(label)
	return api.PortMapping{Label: label, Value: n}, err == nil && n > 0 && n < 1<<16
}

// Check returns a check of the service with its text resolved, and with what it has from its service.
func (s Service) Check(c api.ServiceCheck) api.ServiceCheck {
	for _, field := range []*string{&c.Name, &c.Type, &c.Command, &c.Path, &c.Protocol, &c.PortLabel, &c.Method, &c.Body, &c.TLSServerName} {
		*field = s.text(*field)
	}
	c.Name = cmp.Or(c.Name, fmt.Sprintf("service: %q check", s.Name)) // Nomad's default
	args := make([]string, len(c.Args))
	for i, arg := range c.Args {
		args[i] = s.text(arg)
	}
	headers := make(map[string][]string, len(c.Header))
	for key, values := range c.Header {
		for _, v := range values {
			headers[s.text(key)] = append(headers[s.text(key)], s.text(v))
		}
	}
	c.Args, c.Header = args, headers
	c.TaskName = cmp.Or(s.Task, c.TaskName, s.written.TaskName)
	c.CheckRestart = s.written.CheckRestart.Merge(c.CheckRestart).Copy()
	c.OnUpdate = cmp.Or(c.OnUpdate, s.written.OnUpdate, api.OnUpdateRequireHealthy)
	return c
}
