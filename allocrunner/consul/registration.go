package consul

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/services"
)

// Metadata that every service has besides the job's: a mark for Nomad's tools, the owner, and a digest of the
// definition.
const (
	metaSource = "external-source"
	metaOwner  = "taskapi_owner"
	metaDigest = "taskapi_digest"
)

const (
	idPrefix      = "_nomad-task-"
	checkIDPrefix = "_nomad-check-"
)

// ttlBuffer is how much longer than its interval the result of a script is valid: Nomad's number.
const ttlBuffer = 31 * time.Second

// service is a registration that the agent should have.
type service struct {
	capi.AgentServiceRegistration
	checks []check // in the order of the job file
}

type check struct {
	id     string
	script bool
	period time.Duration
}

// newService returns the registration of an instance. The error is about an instance that no agent accepts.
func newService(in *interfaces.ServiceInstance, owner, namespace, partition string) (*service, error) {
	block := cmp.Or(in.Service, &api.Service{})
	s := &service{AgentServiceRegistration: capi.AgentServiceRegistration{
		ID: in.ID, Name: in.ServiceName, Tags: in.Tags, Address: in.Address, Port: in.Port,
		EnableTagOverride: block.EnableTagOverride, Namespace: namespace, Partition: partition, Meta: maps.Clone(block.Meta),
	}}
	if s.Meta == nil {
		s.Meta = map[string]string{}
	}
	s.Meta[metaSource], s.Meta[metaOwner] = "nomad", owner
	if w := block.Weights; w != nil {
		s.Weights = &capi.AgentWeights{Passing: w.Passing, Warning: w.Warning}
	}
	var errs []error
	for name, text := range block.TaggedAddresses {
		host, port, err := services.TaggedAddress(text, in.Port)
		if err != nil {
			errs = append(errs, fmt.Errorf("tagged address %q: %w", name, err))
		}
		if s.TaggedAddresses == nil {
			s.TaggedAddresses = map[string]capi.ServiceAddress{}
		}
		s.TaggedAddresses[name] = capi.ServiceAddress{Address: host, Port: port}
	}
	for n, c := range block.Checks {
		address := ""
		if n < len(in.CheckAddresses) {
			address = in.CheckAddresses[n]
		}
		made, err := newCheck(in.ID, c, address)
		if err != nil {
			errs = append(errs, fmt.Errorf("check %s: %w", interfaces.Quote(c.Name), err))
			continue
		}
		s.Checks = append(s.Checks, made)
		s.checks = append(s.checks, check{made.CheckID, c.Type == services.TypeScript, c.Interval})
	}
	s.Meta[metaDigest] = s.digest()
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("service %q: %w", in.ServiceName, err)
	}
	return s, nil
}

// digest identifies a definition, across processes.
func (s *service) digest() string {
	encoded, err := json.Marshal(s.AgentServiceRegistration)
	if err != nil {
		panic("consul: a registration is always JSON: " + err.Error())
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:8])
}

// newCheck returns a check in Consul's form. A script check is one that expires unless it is fed.
func newCheck(serviceID string, c api.ServiceCheck, address string) (*capi.AgentServiceCheck, error) {
	out := &capi.AgentServiceCheck{
		CheckID: CheckID(serviceID, c), Name: c.Name, Notes: c.Notes, Status: c.InitialStatus,
		Interval: c.Interval.String(), Timeout: c.Timeout.String(),
		SuccessBeforePassing: c.SuccessBeforePassing, FailuresBeforeWarning: c.FailuresBeforeWarning,
		FailuresBeforeCritical: c.FailuresBeforeCritical,
	}
	if c.Type != services.TypeScript && address == "" {
		return nil, errors.New("it has no address")
	}
	switch c.Type {
	case services.TypeHTTP:
		path, err := url.Parse(c.Path)
		if err != nil {
			return nil, err
		}
		base := &url.URL{Scheme: cmp.Or(c.Protocol, "http"), Host: address}
		out.HTTP, out.Method, out.Header, out.Body = base.ResolveReference(path).String(), c.Method, c.Header, c.Body
		out.TLSServerName, out.TLSSkipVerify = c.TLSServerName, c.TLSSkipVerify
	case services.TypeTCP:
		out.TCP = address
	case services.TypeGRPC:
		out.GRPC, out.GRPCUseTLS = address+"/"+c.GRPCService, c.GRPCUseTLS
		out.TLSServerName, out.TLSSkipVerify = c.TLSServerName, c.TLSSkipVerify
	case services.TypeScript:
		out.Interval, out.Timeout, out.TTL = "", "", (c.Interval + ttlBuffer).String()
	default:
		return nil, fmt.Errorf("type is %q", c.Type)
	}
	return out, nil
}

// CheckID returns Nomad's ID of a check of a service: the SHA-256 of the service's ID and the attributes of the check,
// one after the other. Some attributes are left out when they are not set.
func CheckID(serviceID string, c api.ServiceCheck) string {
	texts := []string{
		serviceID, c.Name, c.Type, c.Command, strings.Join(c.Args, ""), c.Path, c.Protocol, c.PortLabel,
		c.Interval.String(), c.Timeout.String(),
		c.Method, c.Body, c.OnUpdate, c.Notes, flagged[c.TLSSkipVerify], c.TLSServerName,
	}
	var headers []string
	for name, values := range c.Header {
		headers = append(headers, name+strings.Join(values, ""))
	}
	slices.Sort(headers)
	texts = append(append(texts, headers...), c.AddressMode, c.GRPCService, flagged[c.GRPCUseTLS])
	for _, n := range []struct {
		name  string
		value int
	}{
		{"success", c.SuccessBeforePassing}, {"failures", c.FailuresBeforeCritical},
		{"failures-before-warning", c.FailuresBeforeWarning},
	} {
		if n.value != 0 {
			texts = append(texts, n.name+":"+strconv.Itoa(n.value))
		}
	}
	sum := sha256.Sum256([]byte(strings.Join(texts, "")))
	return checkIDPrefix + hex.EncodeToString(sum[:])
}

// flagged are the texts of a flag: an unset one is left out.
var flagged = map[bool]string{true: "true"}

// injected are the tagged addresses that an agent adds by itself.
var injected = []string{"lan_ipv4", "wan_ipv4", "lan_ipv6", "wan_ipv6"}

// asRegistered reports whether the agent's registration is correct, and otherwise returns the tags to register. If the
// job allows it, tags that others have changed stay as long as the job's definition is the one that was registered.
func (s *service) asRegistered(is *capi.AgentService) (tags []string, same bool) {
	tags = s.Tags
	if s.EnableTagOverride && is.EnableTagOverride && is.Meta[metaDigest] == s.Meta[metaDigest] {
		tags = is.Tags
	}
	addresses := maps.Clone(is.TaggedAddresses)
	for _, name := range injected {
		if _, ours := s.TaggedAddresses[name]; !ours {
			delete(addresses, name)
		}
	}
	weights := cmp.Or(s.Weights, &capi.AgentWeights{Passing: 1, Warning: 1})
	same = s.Name == is.Service && s.Address == is.Address && s.Port == is.Port && *weights == is.Weights &&
		s.EnableTagOverride == is.EnableTagOverride && maps.Equal(s.Meta, is.Meta) &&
		maps.Equal(s.TaggedAddresses, addresses) && equalSets(tags, is.Tags)
	return tags, same
}

func equalSets(a, b []string) bool {
	return slices.Equal(slices.Compact(slices.Sorted(slices.Values(a))),
		slices.Compact(slices.Sorted(slices.Values(b))))
}

// allocOf returns the allocation in a service's ID, empty for other kinds of IDs.
func allocOf(serviceID string) string {
	const length = 36 // of a UUID
	rest, ok := strings.CutPrefix(serviceID, idPrefix)
	if !ok || len(rest) <= length || rest[length] != '-' {
		return ""
	}
	return rest[:length]
}
