package review_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/allocrunner/jobspec/review"
	"taskapi/internal/must"
)

// ofConsul is a job whose service names no provider.
func ofConsul(lines string) string {
	return strings.Replace(service(lines), "provider = \"nomad\"\n", "", 1)
}

// TestReviewOfConsul: what a job may ask of Consul depends on whether there is an agent, and nothing that it asks for
// is lost in silence.
func TestReviewOfConsul(t *testing.T) {
	grpc := "check {\nname = \"c\"\ntype = \"grpc\"\ngrpc_service = \"s\"\ninterval = \"2s\"\ntimeout = \"1s\"\n}"
	const inG, inT, inTS = `group "g": `, `group "g" > task "t": `, `group "g" > task "t" > service "s": `
	const inS, inC = `group "g" > service "s": `, `group "g" > service "s" > check "c": `
	refusedService := []string{"refused " + inS + "service provider"}
	for name, tc := range map[string]struct {
		body            string
		none, has, here []string // the findings without an agent, with one, and with the services served here
	}{
		"default":  {body: ofConsul(""), none: refusedService},
		"explicit": {body: ofConsul("provider = \"consul\""), none: refusedService},
		"of a task": {body: strings.Replace(inService("port = \"80\""), "provider = \"nomad\"\n", "", 1),
			none: []string{"refused " + inTS + "service provider"}},
		"nomad's": {body: service("")},
		"grpc": {body: ofConsul(grpc), none: refusedService, here: []string{"refused " + inC + "grpc_service",
			"refused " + inC + "check type"}},
		"tag override": {body: ofConsul("enable_tag_override = true"), none: refusedService,
			here: []string{"refused " + inS + "enable_tag_override"}},
		"tagged addresses": {body: ofConsul("tagged_addresses { wan = \"192.0.2.1:80\" }"), none: refusedService,
			here: []string{"refused " + inS + "tagged_addresses"}},
		"tagged name": {body: ofConsul("tagged_addresses { wan = \"example.org\" }"), none: refusedService,
			has: []string{"refused " + inS + "tagged_addresses"}, here: []string{"refused " + inS + "tagged_addresses"}},
		"any address": {body: ofConsul("address = \"0.0.0.0\""), none: refusedService,
			has: []string{"refused " + inS + "service address"}},
		"weights": {body: ofConsul("weights { passing = 2 }"), none: refusedService,
			here: []string{"refused " + inS + "service weights"}},
		"no weight": {body: ofConsul("weights { passing = 70000 }"), none: refusedService,
			has: []string{"refused " + inS + "service weights"}, here: []string{"refused " + inS + "service weights"}},
		"meta": {body: ofConsul("meta { a-1 = \"" + strings.Repeat("v", 512) + "\" }"), none: refusedService,
			here: []string{"warning " + inS + "service meta"}},
		"long meta": {body: ofConsul("meta { a = \"" + strings.Repeat("v", 513) + "\" }"), none: refusedService,
			has: []string{"refused " + inS + "service meta"}, here: []string{"warning " + inS + "service meta"}},
		"reserved meta": {body: ofConsul("meta { consul-a = \"v\" }"), none: refusedService,
			has: []string{"refused " + inS + "service meta"}, here: []string{"warning " + inS + "service meta"}},
		"meta with a blank": {body: ofConsul("canary_meta = { \"a b\" = \"v\" }"), none: refusedService,
			has: []string{"refused " + inS + "service canary_meta"}, here: []string{"warning " + inS + "service canary_meta"}},
		"cluster": {body: ofConsul("cluster = \"two\""), none: refusedService,
			has: []string{"refused " + inS + "service cluster"}, here: []string{"refused " + inS + "service cluster"}},
		"unknown port": {body: ofConsul("check {\nname = \"c\"\ntype = \"tcp\"\ninterval = \"2s\"\ntimeout = \"1s\"\nport " +
			"= \"nope\"\n}"), none: refusedService,
			has: []string{"refused " + inC + "check port"}, here: []string{"refused " + inC + "check port"}},
		"warns late": {body: ofConsul("check {\nname = \"c\"\ntype = \"tcp\"\ninterval = \"2s\"\ntimeout = " +
			"\"1s\"\nfailures_before_warning = 2\n}"),
			none: refusedService, has: []string{"refused " + inC + "failures_before_warning"}, here: []string{"refused " + inC +
				"failures_before_warning"}},
		"script threshold": {body: ofConsul("check {\nname = \"c\"\ntype = \"script\"\ncommand = \"x\"\ntask = " +
			"\"t\"\ninterval = \"2s\"\ntimeout = \"1s\"\nsuccess_before_passing = 2\n}"),
			none: refusedService, has: []string{"refused " + inC + "success_before_passing"}},
		"connect": {body: ofConsul("connect { native = true }"), none: []string{"refused " + inS + "connect",
			"refused " + inS + "service provider"},
			has: []string{"refused " + inS + "connect"}, here: []string{"refused " + inS + "connect"}},
		"group block": {body: group("consul { namespace = \"n\" }"), none: []string{"refused " + inG + "consul"},
			here: []string{"warning " + inG + "consul"}},
		"two": {body: group("consul { cluster = \"two\" }"), none: []string{"refused " + inG + "consul"},
			has: []string{"refused " + inG + "cluster"}, here: []string{"warning " + inG + "consul"}},
		"task block": {body: task("consul {}"), none: []string{"refused " + inT + "consul"},
			has: []string{"warning " + inT + "consul"}, here: []string{"warning " + inT + "consul"}},
	} {
		t.Run(name, func(t *testing.T) {
			for choice, want := range map[review.Consul][]string{review.NoConsul: tc.none, review.HasConsul: tc.has,
				review.ConsulHere: tc.here} {
				job := must.Get(parse(t, tc.body))(t)
				if choice == review.ConsulHere {
					review.ServeHere(job)
				}
				_, findings, err := review.Group(job, "", review.Host{Drivers: host.Drivers, Consul: choice})
				must.OK(t, err)
				if diff := cmp.Diff(want, lines(findings)); diff != "" {
					t.Errorf("choice %d (-want +got):\n%s", choice, diff)
				}
			}
		})
	}
}

// TestReviewNamesBothRemedies for a job that is for Consul where there is no agent.
func TestReviewNamesBothRemedies(t *testing.T) {
	job := must.Get(parse(t, ofConsul("")))(t)
	_, findings, err := review.Group(job, "", host)
	if err != nil || len(findings) != 1 {
		t.Fatalf("%v, %v", findings, err)
	}
	for _, remedy := range []string{"CONSUL_HTTP_ADDR", "consul.address", "consul.enabled=false", `provider = "nomad"`} {
		if !strings.Contains(findings[0].Message, remedy) {
			t.Errorf("%q does not name %s", findings[0].Message, remedy)
		}
	}
}
