package review_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/review"
	"taskapi/allocrunner/templates/render"
	"taskapi/allocrunner/volumes"
	"taskapi/internal/must"
)

// hcl writes what stands on one line as a job file has it.
func hcl(line string) string {
	return strings.NewReplacer("; ", "\n", "{ ", "{\n", " }", "\n}").Replace(line)
}

// block returns a block with the lines, and with those of the attributes that the lines don't set.
func block(name, lines string, attributes ...string) string {
	for _, a := range attributes {
		key, _, _ := strings.Cut(a, " =")
		if !regexp.MustCompile(`(?m)^` + key + ` `).MatchString(lines) {
			lines = a + "\n" + lines
		}
	}
	return name + " {\n" + lines + "\n}"
}

const (
	ports   = "network {\nport \"http\" {}\nport \"other\" {}\n}\n"
	hostVol = "volume \"v\" {\ntype = \"host\"\nsource = \"v\"\n}\n"
)

func ofType(kind, lines string) string { return inJob("type = \"" + kind + "\"\n" + lines) }

func groupOf(kind, lines string) string {
	return strings.Replace(group(lines), "job \"j\" {", "job \"j\" {\ntype = \""+kind+"\"", 1)
}

func jobWith(task string) string { return "job \"j\" {\ngroup \"g\" {\n" + task + "\n}\n}\n" }

func svc(provider, lines string) string {
	return block("service", lines, `name = "s"`, `provider = "`+provider+`"`, `port = "http"`)
}

func chk(lines string) string {
	return block("check", lines, `name = "c"`, `interval = "2s"`, `timeout = "1s"`)
}

// places are where the lines of a rule stand.
var places = map[string]func(string) string{
	"job":               inJob,
	"bare":              func(l string) string { return "job \"j\" {\n" + l + "\n}\n" },
	"batch":             batch,
	"sysbatch":          func(l string) string { return ofType("sysbatch", l) },
	"system":            func(l string) string { return ofType("system", l) },
	"group":             group,
	"group of batch":    func(l string) string { return groupOf("batch", l) },
	"group of system":   func(l string) string { return groupOf("system", l) },
	"group of sysbatch": func(l string) string { return groupOf("sysbatch", l) },
	"task": func(l string) string {
		return jobWith(block(`task "t"`, l+"\n"+rawConfig, `driver = "raw_exec"`))
	},
	"task of batch": func(l string) string {
		return strings.Replace(task(l), "job \"j\" {", "job \"j\" {\ntype = \"batch\"", 1)
	},
	"named task": func(l string) string { return jobWith(block(`task "`+l+`"`, raw)) },
	"lifecycle": func(l string) string {
		return group("task \"u\" {\n" + raw + block("lifecycle", l) + "\n}")
	},
	"mount": func(l string) string {
		return jobWith(hostVol + block(`task "t"`, raw+block("volume_mount", l, `volume = "v"`, `destination = "/x"`)))
	},
	"two mounts": func(l string) string {
		m := block("volume_mount", l, `volume = "v"`, `destination = "/x"`)
		return jobWith(hostVol + block(`task "t"`, raw+m+"\n"+m))
	},
	"service":      func(l string) string { return group(ports + svc("nomad", l)) },
	"consul":       func(l string) string { return group(ports + svc("consul", l)) },
	"two services": func(l string) string { return group(ports + svc("nomad", "") + "\n" + svc("nomad", l)) },
	"task service": func(l string) string { return jobWith(ports + block(`task "t"`, raw+svc("nomad", l))) },
	"check":        func(l string) string { return group(ports + svc("nomad", chk(l))) },
	"check without port": func(l string) string {
		return group(block("service", chk(l), `name = "s"`, `provider = "nomad"`))
	},
	"consul check": func(l string) string { return group(ports + svc("consul", chk(l))) },
	"consul check without port": func(l string) string {
		return group(block("service", chk(l), `name = "s"`, `provider = "consul"`))
	},
}

// TestRulesOfNomad: what a Nomad server refuses is refused, and what it takes is taken, but for the differences that
// testdata/rules.txt lists. With NOMAD_ADDR of an agent that has Vault enabled, the test holds the file to that agent.
func TestRulesOfNomad(t *testing.T) {
	here := host
	here.Consul, here.Programs = review.HasConsul, []render.Program{render.Vault, render.Consul}
	here.Volumes = []volumes.Volume{{Name: "v", Path: "/"}, {Name: "v[0]", Path: "/"}}
	documented := map[string]bool{"file": true}
	for _, r := range review.Rows() {
		documented[r.Attribute] = true
	}
	nomad := must.Get(api.NewClient(api.DefaultConfig()))(t).Jobs()
	section := ""
	for line := range strings.Lines(string(must.Read(t, filepath.Join("testdata", "rules.txt")))) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "== "); ok {
			section = title
		}
		place, rest, ok := strings.Cut(line, " |")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		refused := strings.HasPrefix(section, "refused")
		want := ""
		if refused {
			want, rest, _ = strings.Cut(rest, " |")
		}
		body := places[place](hcl(strings.TrimSpace(rest)))
		if got := refusedFeatures(t, body, here); got != strings.TrimSpace(want) {
			t.Errorf("%s:\nrefused for %q, want %q", line, got, strings.TrimSpace(want))
		}
		if strings.HasPrefix(section, "refused here alone") {
			for feature := range strings.SplitSeq(want, ", ") {
				words := strings.Fields(feature)
				if !documented[words[len(words)-1]] {
					t.Errorf("%s:\n%s has no row in docs/jobfiles.md", line, feature)
				}
			}
		}
		if os.Getenv("NOMAD_ADDR") != "" && takenByNomad(nomad, body) == (refused != strings.HasSuffix(section, "alone")) {
			t.Errorf("%s:\nNomad says something else", line)
		}
	}
}

// refusedFeatures lists the features that the review refuses in a job file. It returns "file" for a file that can't be
// read.
func refusedFeatures(t *testing.T, body string, here review.Host) string {
	t.Helper()
	job, err := parse(t, body)
	if err != nil {
		return "file"
	}
	_, findings, err := review.Job(job, here)
	if err != nil {
		return "file"
	}
	var features []string
	for _, f := range findings {
		if f.Severity == review.Refused {
			features = append(features, f.Feature)
		}
	}
	slices.Sort(features)
	return strings.Join(slices.Compact(features), ", ")
}

func takenByNomad(jobs *api.Jobs, body string) bool {
	job, err := jobs.ParseHCL(body, true)
	if err != nil {
		return false
	}
	said, _, err := jobs.Validate(job, nil)
	return err == nil && said.Error == ""
}
