package services

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// The types of checks.
const (
	TypeHTTP   = "http"
	TypeTCP    = "tcp"
	TypeGRPC   = "grpc"
	TypeScript = "script"
)

// Rule is a rule for an attribute of a check. A check that breaks one can't be run.
type Rule struct {
	Attribute string // as the job file has it
	Words     string // what it must be
	Value     func(*api.ServiceCheck) string
	Holds     func(*api.ServiceCheck) bool
}

// OfTime reports whether the rule is about a time. Job files are held to a longer minimum.
func (r Rule) OfTime() bool { return r.Attribute == "interval" || r.Attribute == "timeout" }

// typeRule returns the rule for the types of checks, in the order in which messages name them.
func typeRule(names ...string) Rule {
	return Rule{"type", OneOf(names...),
		func(c *api.ServiceCheck) string { return c.Type },
		func(c *api.ServiceCheck) bool { return slices.Contains(names, c.Type) }}
}

// OneOf says that a text must be one of several values. An empty value stands for a text that is left out.
func OneOf(values ...string) string {
	words, leftOut := "", ""
	for i, v := range values {
		switch {
		case v == "":
			leftOut = ", or left out"
			continue
		case words == "":
		case i == len(values)-1:
			words += " or "
		default:
			words += ", "
		}
		words += strconv.Quote(v)
	}
	return "it must be " + words + leftOut
}

// CheckRules are the rules for checks that taskapi makes. The check's port is not among them.
var CheckRules = []Rule{
	typeRule(TypeHTTP, TypeTCP, TypeScript),
	{"interval", "it must be above 0s",
		func(c *api.ServiceCheck) string { return c.Interval.String() },
		func(c *api.ServiceCheck) bool { return c.Interval > 0 }},
	{"timeout", "it must be above 0s",
		func(c *api.ServiceCheck) string { return c.Timeout.String() },
		func(c *api.ServiceCheck) bool { return c.Timeout > 0 }},
	{"address_mode", AddressModeWords,
		func(c *api.ServiceCheck) string { return c.AddressMode },
		func(c *api.ServiceCheck) bool { return ValidAddressMode(c.AddressMode) }},
	{"protocol", OneOf("", "http", "https"),
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

// ConsulCheckRules are the rules for checks that Consul's agent makes.
var ConsulCheckRules = append([]Rule{
	typeRule(TypeHTTP, TypeTCP, TypeGRPC, TypeScript),
	{"grpc_service", "it is for grpc checks alone",
		func(c *api.ServiceCheck) string { return c.GRPCService },
		func(c *api.ServiceCheck) bool { return c.Type == TypeGRPC || c.GRPCService == "" }},
}, CheckRules[1:]...)

// Validate returns the rules that a check, as Service.Check returns it, breaks. If its provider makes the check
// (elsewhere), that provider judges everything but the times.
func Validate(c *api.ServiceCheck, elsewhere bool) error {
	var errs []error
	for _, rule := range CheckRules {
		if (rule.OfTime() || !elsewhere) && !rule.Holds(c) {
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
