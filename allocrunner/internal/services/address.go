package services

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// The rules for the port and the address_mode of a service or a check.
const (
	PortWords        = "it must be the label of a port of the group, or a number from 1 to 65535"
	AddressModeWords = `it must be "auto" or "host", or left out: tasks have the machine's network, and none of the ` +
		`allocation's ("alloc") or of a driver's ("driver")`

	// AddressWords is the rule for a service with an address of its own.
	AddressWords = `with an address its address_mode must be "auto", or left out`
)

// ValidAddressMode reports whether an address_mode is possible without network namespaces and drivers' networks. Nomad
// refuses the others, too, but at the start of the task.
func ValidAddressMode(mode string) bool { return slices.Contains([]string{"", "auto", "host"}, mode) }

// ValidAddress reports whether a service's address_mode is possible with its address.
func ValidAddress(s *api.Service) bool { return s.Address == "" || s.AddressMode != "host" }

// Address returns the service's address: its own, or that of its port. Without a port, port is 0.
func (s Service) Address() (host string, port int, err error) {
	if !ValidAddress(s.written) {
		return "", 0, errors.New(AddressWords)
	}
	return s.address(s.text(s.written.PortLabel), s.written.AddressMode, true)
}

// CheckAddress returns the address to which a check, as Check returns it, connects. The check's port and address_mode
// replace the service's.
func (s Service) CheckAddress(c api.ServiceCheck) (host string, port int, err error) {
	return s.address(cmp.Or(c.PortLabel, s.text(s.written.PortLabel)), cmp.Or(c.AddressMode, s.written.AddressMode),
		false)
}

// address returns the address of a port. The service's own address replaces the port's.
func (s Service) address(label, mode string, portless bool) (host string, port int, err error) {
	if !ValidAddressMode(mode) {
		return "", 0, fmt.Errorf("address_mode is %q: %s", mode, AddressModeWords)
	}
	found, ok := FindPort(s.Task, label, s.resolver.Ports)
	if !ok && (label != "" || !portless) {
		return "", 0, fmt.Errorf("port is %q: %s", label, PortWords)
	}
	return cmp.Or(s.text(s.written.Address), found.HostIP, s.resolver.HostIP, "127.0.0.1"), found.Value, nil
}

// FindPort returns the port with a label that a task, or the group for the empty name, may use. A number that is no
// label is a port without an address.
func FindPort(task, label string, ports []api.PortMapping) (found api.PortMapping, ok bool) {
	for _, p := range ports {
		if p.Label == label || p.Label == task+"/"+label {
			return p, true
		}
	}
	n, err := strconv.Atoi(label)
	return api.PortMapping{Label: label, Value: n}, err == nil && n > 0 && n < 1<<16
}

// TaggedAddress reads a tagged address: an IP address, which has the service's port, or a host and a port.
func TaggedAddress(text string, servicePort int) (host string, port int, err error) {
	if net.ParseIP(text) != nil {
		return text, servicePort, nil
	}
	host, digits, err := net.SplitHostPort(text)
	if err == nil && host != "" {
		port, err = strconv.Atoi(digits)
	}
	if err != nil || port < 1 || port >= 1<<16 {
		return "", 0, fmt.Errorf("%q is neither an IP address nor a host with a port", text)
	}
	return host, port, nil
}
