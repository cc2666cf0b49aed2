package allocrunner_test

import (
	"strings"
	"testing"

	"taskapi/allocrunner"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/fingerprint"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/internal/must"
)

const registeredJob = `
job "j" {
  type = "batch"
  group "g" {
    task "main" {
      driver = "memory"
      config { program = "says what hooks give" }
      env { GIVEN = "${attr.driver.memory} ${attr.driver.memory.version}" }
      kill_timeout = "1s"
    }
  }
}`

// TestARegisteredDriver needs no more than its registry: a job file that names it is reviewed by it, runs with it, may
// refer to what it finds on the machine, and is refused where it is not registered, or when the driver refuses the
// config.
func TestARegisteredDriver(t *testing.T) {
	t.Parallel()
	driver := newMemoryDriver()
	known := drivers.NewRegistry(driver)
	reviewed := func(text string, known *drivers.Registry) (cfg interfaces.Config, findings string) {
		t.Helper()
		job := must.Get(jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(text)}))(t)
		group, found, err := review.Group(job, "", review.Host{Drivers: known})
		must.OK(t, err)
		cfg = configure(t, "batch", unedited)
		cfg.Alloc.Job, cfg.Alloc.TaskGroup = job, *group.Name
		found = append(found, allocrunner.CheckTasks(cfg.Alloc, t.TempDir(), known)...)
		for _, f := range found {
			findings += f.String() + "\n"
		}
		return cfg, findings
	}
	cfg, findings := reviewed(registeredJob, known)
	if findings != "" {
		t.Error(findings)
	}
	r := beginWith(t, allocrunner.WithDrivers(known), cfg)
	r.untilSaid("1 1 main\n")
	r.untilState("main", "running")
	r.stop()
	if err := r.end(); err != nil || driver.started() != 1 {
		t.Errorf("%d starts, %v", driver.started(), err)
	}

	for want, tc := range map[string]struct {
		text  string
		known *drivers.Registry
	}{
		`the driver "memory" is not here; there is: plain`: {registeredJob,
			drivers.NewRegistry(renamed{driver, "plain"})},
		`program is "flies": it must be one of those`: {strings.Replace(registeredJob,
			"says what hooks give", "flies", 1), known},
		`the driver "memory" can't start tasks here: no memory left`: {registeredJob,
			drivers.NewRegistry(unhealthy{driver})},
		`the driver "memory" can't give a task a user`: {strings.Replace(registeredJob, "kill_timeout",
			"user = \"nobody\"\nkill_timeout", 1), known},
	} {
		if _, findings := reviewed(tc.text, tc.known); !strings.Contains(findings, want) {
			t.Errorf("%q, want %q", findings, want)
		}
	}

	node := fingerprint.Node(t.TempDir(), known)
	if info := node.Drivers["memory"]; !info.Healthy || node.Attributes["driver.memory"] != "1" ||
		node.Attributes["driver.memory.version"] != "1" {
		t.Errorf("%+v, %v", info, node.Attributes)
	}
	node = fingerprint.Node(t.TempDir(), drivers.NewRegistry(unhealthy{driver}))
	if info := node.Drivers["memory"]; info.Healthy || info.HealthDescription != "no memory left" ||
		node.Attributes["driver.memory"] != "" {
		t.Errorf("%+v, %v", info, node.Attributes)
	}
}

// renamed is a driver with another name.
type renamed struct {
	*memoryDriver
	name string
}

func (d renamed) Name() string { return d.name }

// unhealthy is a driver that can start nothing for now.
type unhealthy struct{ *memoryDriver }

func (unhealthy) Fingerprint() drivers.Fingerprint {
	return drivers.Fingerprint{Problem: "no memory left"}
}
