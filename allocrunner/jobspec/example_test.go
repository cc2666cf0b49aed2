package jobspec_test

import (
	"fmt"
	"log"

	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/allocrunner/jobspec/review"
)

// A job file is parsed, its group chosen, and what would not happen as written is found. Then two versions of it are
// compared.
func Example() {
	parse := func(seconds string) jobspec.Config {
		return jobspec.Config{Filename: "web.nomad.hcl", Vars: []string{"seconds=" + seconds}, Body: []byte(`
variable "seconds" {}

job "web" {
  group "web" {
    task "server" {
      driver       = "raw_exec"
      kill_timeout = "${var.seconds}s"
      config {
        command = "/usr/bin/server"
      }
      resources {
        cpu = 500
      }
      csi_plugin {
        id   = "x"
        type = "node"
      }
    }
  }
}
`)}
	}
	job, err := jobspec.Parse(parse("5"))
	if err != nil {
		log.Fatal(err)
	}
	group, findings, err := review.Group(job, "", review.Host{Drivers: builtin.Drivers})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(*group.Name, review.AnyRefused(findings))
	for _, f := range findings {
		fmt.Println(f.Severity, f.Where, f.Feature)
	}

	next, err := jobspec.Parse(parse("9"))
	if err != nil {
		log.Fatal(err)
	}
	for _, change := range jobdiff.Changes(job, next, "web") {
		fmt.Println(change)
	}
	// Output:
	// web true
	// refused group "web" > task "server" csi_plugin
	// group "web" > task "server" > kill_timeout: changes from 5s to 9s; applies from the next stop or restart
}
