package services

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// The types of checks.
const (
	TypeHTTP   = "http"
	TypeTCP    = "tcp"
	TypeScript = "script"
	TypeGRPC   = "grpc" // of a service that Consul's agent checks
)

// Rule is something that a check must be to be run.
type Rule struct {
	Attribute string // as the job file has it
	Words     string // what it must be
	Value     func(*api.ServiceCheck) string
	Holds     func(*api.ServiceCheck) bool
}

// CheckRules are all that there are, but for the check's port.
var CheckRules = []Rule{
	{"type", `it must be "http", "tcp" or "script"`,
		func(c *api.ServiceCheck) string { return c.Type },
		func(c *api.ServiceCheck) bool {
			return slices.Contains([]string{TypeHTTP, TypeTCP, TypeScript}, c.Type)
		}},
	{"interval", "it must be above 0s",
		func(c *api.ServiceCheck) string { return c.Interval.String() },
		func(c *api.ServiceCheck) bool { return c.Interval > 0 }},
	{"timeout", "it must be above 0s",
		func(c *api.ServiceCheck) string { return c.Timeout.String() },
		func(c *api.ServiceCheck) bool { return c.Timeout > 0 }},
	{"address_mode", AddressModeWords,
		func(c *api.ServiceCheck) string { return c.AddressMode },
		func(c *api.ServiceCheck) bool { return ValidAddressMode(c.AddressMode) }},
	{"protocol", `it must be "http" or "https", or left out`,
		func(c *api.ServiceCheck) string { return c.Protocol },
		func(c *api.ServiceCheck) bool {
			return c.Type != TypeHTTP || slices.Contains([]string{"", "http", "https"}, c.Protocol)
		}},
	{"path", "it must be the path of a URL alone, such as /health, for an http check",
		func(c *api.ServiceCheck) string { return c.Path },
		func(c *api.ServiceCheck) bool { return c.Type != TypeHTTP || c.Path != "" && validPath(c.Path) }},
	{"method", "it must be an HTTP method such as GET or HEAD, or left out",
		func(c *api.ServiceCheck) string { return c.Method },
		func(c *api.ServiceCheck) bool { _, err := http.NewRequest(c.Method, "/", nil); return err == nil }},
	{"command", "it is needed for a script check, and for no other",
		func(c *api.ServiceCheck) string { return c.Command },
		func(c *api.ServiceCheck) bool { return (c.Type == TypeScript) == (c.Command != "") }},
	{"args", "they are for script checks alone",
		func(c *api.ServiceCheck) string { return strings.Join(c.Args, " ") },
		func(c *api.ServiceCheck) bool { return c.Type == TypeScript || len(c.Args) == 0 }},
	{"task", "it must name the task in which a script runs, unless the service is a task's",
		func(c *api.ServiceCheck) string { return c.TaskName },
		func(c *api.ServiceCheck) bool { return c.Type != TypeScript || c.TaskName != "" }},
}

// ConsulCheckRules are those of checks that Consul's agent makes.
var ConsulCheckRules = append([]Rule{
	{"type", `it must be "http", "tcp", "grpc" or "script"`,
		func(c *api.ServiceCheck) string { return c.Type },
		func(c *api.ServiceCheck) bool {
			return slices.Contains([]string{TypeHTTP, TypeTCP, TypeGRPC, TypeScript}, c.Type)
		}},
	{"grpc_service", "it is for grpc checks alone",
		func(c *api.ServiceCheck) string { return c.GRPCService },
		func(c *api.ServiceCheck) bool { return c.Type == TypeGRPC || c.GRPCService == "" }},
}, CheckRules[1:]...)

// Validate returns the rules that a check, as Service.Check returns it, breaks.
func Validate(c *api.ServiceCheck) error {
	var errs []error
	for _, rule := range CheckRules {
		if !rule.Holds(c) {
			errs = append(errs, fmt.Errorf("%s is %q: %s", rule.Attribute, rule.Value(c), rule.Words))
		}
	}
	return errors.Join(errs...)
}

// ValidateTimes returns the rules that the times of a check break. The rest of what a check of another provider must be is that provider's
// to say.
func ValidateTimes(c *api.ServiceCheck) error {
	var errs []error
	for _, rule := range CheckRules {
		if (rule.Attribute == "interval" || rule.Attribute == "timeout") && !rule.Holds(c) {
			errs = append(errs, fmt.Errorf("%s is %q: %s", rule.Attribute, rule.Value(c), rule.Words))
		}
	}
	return errors.Join(errs...)
}

func validPath(path string) bool {
	server := &url.URL{Scheme: "http", Host: "some.invalid"}
	target, err := server.Parse(path)
	return err == nil && target.Host == server.Host && target.Scheme == server.Scheme && target.User == nil
}
