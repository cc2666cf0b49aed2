package jobspec_test

import (
	"testing"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/same"
)

func TestPlaces(t *testing.T) {
	text := `job "shop" {
  type = "batch"
  group "a > b" {
    network {
      port "http" {
        static = 80
      }
    }
    task "we\"b" {
      restart {
        attempts = 3
      }
      config {
        cmd = "x"
      }
      service {
        name = "s"
        check {
          name = "c"
        }
      }
    }
  }
}
`
	places := jobspec.NewPlaces(jobspec.Config{Filename: "x.hcl", Body: []byte(text)})
	for _, tc := range []struct{ path, feature, want string }{
		{"job", "type", "x.hcl:2"},
		{"job", "scheduling", "x.hcl:1"},
		{`group "a > b"`, "network", "x.hcl:4"},
		{`group "a > b" > port "http"`, "port static", "x.hcl:6"},
		{`group "a > b" > task "we\"b"`, "restart attempts", "x.hcl:11"},
		{`group "a > b" > task "we\"b"`, "config cmd", "x.hcl:14"},
		{`group "a > b" > task "we\"b"`, "kill_timeout", "x.hcl:9"},
		{`group "a > b" > task "we\"b" > service "s"`, "service provider", "x.hcl:16"},
		{`group "a > b" > task "we\"b" > service "s" > check`, "check interval", "x.hcl:18"},
		{`group "a > b" > task "we\"b" > service "s" > check "c"`, "check name", "x.hcl:19"},
		{`group "other"`, "network", "x.hcl:1"},
		{` > `, " ", "x.hcl:1"},
	} {
		same.As(t, tc.want, places.Of(tc.path, tc.feature), tc.path, ", ", tc.feature)
	}
	for _, none := range []string{"", "{}", "x", "variable \"v\" {}"} {
		same.As(t, "", jobspec.NewPlaces(jobspec.Config{Filename: "x", Body: []byte(none)}).Of("job", "type"), none)
	}
}
