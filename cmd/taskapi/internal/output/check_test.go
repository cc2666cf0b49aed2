package output_test

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/same"
)

func TestCheckOutput(t *testing.T) {
	page := "\n<!DOCTYPE HTML>\n<html><h1>no</h1>"
	for _, tc := range []struct {
		check  api.AllocCheckStatus
		output string
	}{
		{api.AllocCheckStatus{Output: "nomad: http ok\n"}, "nomad: http ok"},
		{api.AllocCheckStatus{Output: "a < b"}, "a < b"},
		{api.AllocCheckStatus{StatusCode: 404, Output: page}, "404 Not Found, 34 bytes of text/html"},
		{api.AllocCheckStatus{Output: page}, "34 bytes of text/html"},
		{api.AllocCheckStatus{}, ""},
	} {
		same.As(t, tc.output, output.CheckOutput(tc.check))
	}
}
