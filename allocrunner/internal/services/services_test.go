package services_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/services"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

var resolver = services.Resolver{
	Replace: func(task, s string) string { return strings.NewReplacer("${TASK}", task, "${PORT}", "http").Replace(s) },
	Ports:   []api.PortMapping{{Label: "http", Value: 20530, To: 80, HostIP: "127.0.0.1"}, {Label: "7", Value: 20532}},
	HostIP:  "127.0.0.9",
}

func TestAddress(t *testing.T) {
	for name, c := range map[string]struct {
		task    string
		service api.Service
		host    string
		port    int
	}{
		"label":               {"web", api.Service{PortLabel: "${PORT}"}, "127.0.0.1", 20530},
		"label like a number": {"web", api.Service{PortLabel: "7"}, "127.0.0.9", 20532},
		"number":              {"", api.Service{PortLabel: "8"}, "127.0.0.9", 8},
		"address given": {"web", api.Service{PortLabel: "http", Address: "${TASK}.example", AddressMode: "auto"},
			"web.example", 20530},
		"address and number": {"", api.Service{PortLabel: "8", Address: "example"}, "example", 8},
		"no number":          {"", api.Service{PortLabel: "65536"}, "", 0},
	} {
		host, port, err := resolver.Resolve(c.task, &c.service).Address()
		if host != c.host || port != c.port || (err == nil) != (c.port != 0) {
			t.Errorf("%s: got %s, %d, %v; want %s, %d", name, host, port, err, c.host, c.port)
		}
	}
}

// TestAServiceNeedsNoPort, and a check does.
func TestAServiceNeedsNoPort(t *testing.T) {
	for address, want := range map[string]string{"": "127.0.0.9", "example": "example"} {
		service := resolver.Resolve("", &api.Service{Address: address})
		if host, port, err := service.Address(); host != want || port != 0 || err != nil {
			t.Error(host, port, err)
		}
		same.Fails(t, same.Err2(service.CheckAddress(api.ServiceCheck{})), "a check without a port has an address")
	}
}

// TestCheck has its text resolved and what it lacks from its service, which stays as it is.
func TestCheck(t *testing.T) {
	written := &api.Service{
		Name: "${TASK}-svc", PortLabel: "http", TaskName: "other", OnUpdate: "ignore",
		CheckRestart: &api.CheckRestart{Limit: 3},
	}
	check := api.ServiceCheck{Type: "http", Path: "/${TASK}", Header: map[string][]string{"X": {"${TASK}"}},
		Interval: time.Second, Timeout: time.Second}
	service := resolver.Resolve("web", written)
	got := service.Check(check)
	want := check
	want.Name, want.Path, want.Header = `service: "web-svc" check`, "/web", map[string][]string{"X": {"web"}}
	want.TaskName, want.OnUpdate, want.CheckRestart = "web", "ignore", &api.CheckRestart{Limit: 3}
	same.As(t, want, got)
	must.OK(t, services.Validate(&got, false))
	got.CheckRestart.Limit = 4
	same.As(t, 3, written.CheckRestart.Limit, "the check shares the service's check_restart")
	if host, port, err := service.CheckAddress(api.ServiceCheck{PortLabel: "8080"}); host != "127.0.0.9" || port != 8080 ||
		err != nil {
		t.Error(host, port, err)
	}
}
