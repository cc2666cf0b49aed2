package agent

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/rawexec"
	"taskapi/handlers/apierror"
	"taskapi/identity"
	"taskapi/internal/must"
)

// hclJob returns a job file with what is put into the job.
func hclJob(more string) string {
	return "job \"x\" {\n" + more + "\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      config {\n " +
		"       command = \"/bin/true\"\n" +
		"      }\n    }\n  }\n}\n"
}

// TestParse: texts from anybody become jobs or errors with a place, and read no file.
func TestParse(t *testing.T) {
	p := parser{settings: DefaultSettings(), allocs: t.TempDir()}
	text := "variable \"n\" {}\n" + hclJob("  priority = var.n\n")
	job, err := p.Parse(t.Context(), api.JobsParseRequest{JobHCL: text, Variables: "n = 70\n"})
	if err != nil || *job.Priority != 70 || job.Region != nil {
		t.Fatalf("job = %+v, %v; want it as written", job, err)
	}
	job, err = p.Parse(t.Context(), api.JobsParseRequest{JobHCL: text, Variables: "n = 70\n", Canonicalize: true})
	if err != nil || *job.Region != "global" {
		t.Errorf("job = %+v, %v; want it canonical", job, err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"no job": {"x = 1\n", "job.hcl:1"},
		"a file": {hclJob("  meta = { a = file(\"/etc/passwd\") }"), "files of this machine can't be used here"},
		"a bomb": {"locals {\n  a = join(\"\", [for i in range(1000) : \"xxxxxxxxxxxxxxxx\"])\n" + bomb(20) + "}\n" +
			hclJob(""), "invalid job file: job.hcl "},
		"a JSON one": {`{"Job": {"ID": `, "job.hcl"},
	} {
		_, err := p.Parse(t.Context(), api.JobsParseRequest{JobHCL: c.text})
		known, ok := errors.AsType[*apierror.Error](err)
		if !ok || known.Kind != apierror.Invalid || !strings.Contains(known.Message, c.want) || len(known.Message) > 4096 {
			t.Errorf("%s: %.500v, want %s", name, err, c.want)
		}
	}
}

// bomb doubles a local value so many times.
func bomb(times int) string {
	var text strings.Builder
	for i := range times {
		next, last := string(rune('b'+i)), string(rune('a'+i))
		text.WriteString("  " + next + " = \"${local." + last + "}${local." + last + "}\"\n")
	}
	return text.String()
}

// TestValidate: what keeps a job from running, whatever its ID, is an answer.
func TestValidate(t *testing.T) {
	p := parser{settings: DefaultSettings(), allocs: t.TempDir()}
	job := func(change string) *api.Job {
		var job api.Job
		text := `{"ID":"other","Name":"other","Type":"service","TaskGroups":[{"Name":"g",` +
			`"Tasks":[{"Name":"t","Driver":"raw_exec","Config":{"command":"/bin/true"}}]}]}`
		must.OK(t, json.Unmarshal([]byte(strings.Replace(text, `"raw_exec"`, change, 1)), &job))
		return &job
	}
	if found, err := p.Validate(t.Context(), job(`"raw_exec"`)); err != nil || len(found.Errors) != 0 {
		t.Errorf("a good job: %+v, %v", found, err)
	}
	if found, err := p.Validate(t.Context(), job(`"docker"`)); err != nil || len(found.Errors) != 1 ||
		!strings.Contains(found.Errors[0], "docker") {
		t.Errorf("a job for docker: %+v, %v; want why not", found, err)
	}
	long := job(`"raw_exec"`)
	long.TaskGroups[0].Tasks[0].Identities = []*api.WorkloadIdentity{
		{Name: "api", Audience: p.settings.Audience(), TTL: p.settings.LongestTTL() + 1},
		{Name: "elsewhere", Audience: []string{"bank.example.org"}, TTL: p.settings.LongestTTL() + 1},
	}
	if found, err := p.Validate(t.Context(), long); err != nil || len(found.Errors) != 1 ||
		!strings.Contains(found.Errors[0], `identity "api": identity ttl`) {
		t.Errorf("an identity that the API would refuse: %+v, %v; want why not", found, err)
	}
	p.settings.ExtraClaims.Optional = map[string]string{"team": "${job.meta.team}"}
	extra := job(`"raw_exec"`)
	extra.TaskGroups[0].Tasks[0].Identity = &api.WorkloadIdentity{File: true, ExtraClaims: []string{"team"}}
	extra.Meta = map[string]string{"team": "blue"}
	if found, err := p.Validate(t.Context(), extra); err != nil || len(found.Errors) != 0 {
		t.Errorf("a claim of the settings: %+v, %v", found, err)
	}
	extra.Meta["team"] = strings.Repeat("b", identity.MaxTokenLength)
	if found, err := p.Validate(t.Context(), extra); err != nil || len(found.Errors) != 1 ||
		!strings.Contains(found.Errors[0], `identity "default": identity: `) {
		t.Errorf("a claim that makes tokens too long: %+v, %v; want why not", found, err)
	}
	if found, err := p.Validate(t.Context(), &api.Job{ID: new("empty")}); err != nil || len(found.Errors) == 0 {
		t.Errorf("a job without groups: %+v, %v; want why not", found, err)
	}
}

// other is a driver of another name that refuses nothing.
type other struct{ rawexec.Driver }

func (other) Name() string                  { return "other" }
func (other) Validate(map[string]any) error { return nil }

// TestValidateWithOtherDrivers: the drivers of the settings judge a job, and are those of the node.
func TestValidateWithOtherDrivers(t *testing.T) {
	settings := DefaultSettings()
	settings.Drivers = drivers.NewRegistry(other{})
	task := api.NewTask("t", "other").SetConfig("image", "y")
	job := api.NewServiceJob("x", "x", "global", 50).AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task))
	for _, tc := range []struct {
		settings Settings
		want     int
	}{{settings, 0}, {DefaultSettings(), 1}} {
		found, err := parser{settings: tc.settings, allocs: t.TempDir()}.Validate(t.Context(), job)
		if err != nil || len(found.Errors) != tc.want {
			t.Errorf("%q, %v; want %d errors", found.Errors, err, tc.want)
		}
	}
	node := newMachine(filepath.Join(t.TempDir(), "allocs", "id"), memory.New(), settings).Node()
	if len(node.Drivers) != 1 || node.Drivers["other"] == nil || node.Attributes["driver.raw_exec"] != "" {
		t.Errorf("%v, %v", node.Drivers, node.Attributes)
	}
}
