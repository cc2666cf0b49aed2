package jobspec_test

import (
	"errors"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec"
)

// TestTextsAreUTF8, whatever they come from: an allocation with another value could not be gone on with.
func TestTextsAreUTF8(t *testing.T) {
	const body = `
variable "v" {
  default = "text"
}
job "j" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      env {
        V = var.v
      }
    }
  }
}
`
	for name, c := range map[string]struct {
		cfg  jobspec.Config
		want string // in the error
	}{
		"-var":         {jobspec.Config{Vars: []string{"v=a\xffb"}}, `-var "v" is not UTF-8 text`},
		"-var's name":  {jobspec.Config{Vars: []string{"v\xff=a"}}, `-var "v?" is not UTF-8 text`},
		"environment":  {jobspec.Config{Environ: []string{"NOMAD_VAR_v=a\xffb"}}, "is not UTF-8"},
		"text":         {jobspec.Config{Vars: []string{"v=grün"}}, ""},
		"other things": {jobspec.Config{Environ: []string{"OTHER=\xff", "NOMAD_VAR_other=\xff"}}, ""},
	} {
		c.cfg.Filename, c.cfg.Body = "job.nomad.hcl", []byte(body)
		_, err := jobspec.Parse(c.cfg)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (!errors.Is(err, jobspec.ErrInvalid) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
