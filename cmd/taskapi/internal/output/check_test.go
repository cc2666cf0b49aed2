package output_test

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/output"
)

func TestChecksForPeople(t *testing.T) {
	page := "\n<!DOCTYPE HTML>\n<html><h1>no</h1>"
	for _, tc := range []struct {
		check        api.AllocCheckStatus
		name, output string
	}{
		{api.AllocCheckStatus{Check: `service: "web" check`, Service: "web", Output: "nomad: http ok\n"}, "web check",
			"nomad: http ok"},
		{api.AllocCheckStatus{Check: `service: "web" check`, Service: "db", Output: "a < b"}, `service: "web" check`,
			"a < b"},
		{api.AllocCheckStatus{Check: "up", Service: "web", StatusCode: 404, Output: page}, "up",
			"404 Not Found, 34 bytes of text/html"},
		{api.AllocCheckStatus{Check: "up", Output: page}, "up", "34 bytes of text/html"},
		{api.AllocCheckStatus{}, "", ""},
	} {
		if got := output.CheckName(tc.check); got != tc.name {
			t.Errorf("%q, want %q", got, tc.name)
		}
		if got := output.CheckOutput(tc.check); got != tc.output {
			t.Errorf("%q, want %q", got, tc.output)
		}
	}
}
