package review_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/internal/must"
)

// FuzzReview: no job makes it panic, whatever is nil in it, canonical or not.
func FuzzReview(f *testing.F) {
	dir := f.TempDir()
	for _, pattern := range []string{"../testdata/*.hcl", "../testdata/*.json", "../../../examples/*.hcl"} {
		files := must.Get(filepath.Glob(pattern))(f)
		for _, file := range files {
			body := must.Read(f, file)
			f.Add(body)
		}
	}
	f.Add([]byte(
		`{"TaskGroups":[null,{"Name":"g","Networks":[null,{"DynamicPorts":[{}]}],` +
			`"Services":[null,{"Provider":"nomad","Checks":[{}]}],"Tasks":[null,{"Resources":{"Networks":[null]},` +
			`"Identities":[null,{}],"LogConfig":{},"RestartPolicy":{},"Templates":[null],"Lifecycle":{}}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var job api.Job
		if json.Unmarshal(body, &job) == nil {
			reviewAll(t, &job)
		}
		if job, err := jobspec.Parse(jobspec.Config{Filename: "job", Dir: dir, Body: body}); err == nil {
			reviewAll(t, job)
		}
	})
}

func reviewAll(t *testing.T, job *api.Job) {
	t.Helper()
	names := []string{""}
	for _, g := range job.TaskGroups {
		if g != nil && g.Name != nil {
			names = append(names, *g.Name)
		}
	}
	for _, name := range names {
		chosen, findings, err := review.Group(job, name, host)
		if (err == nil) != (chosen != nil) {
			t.Errorf("group %q: %v with error %v", name, chosen, err)
		}
		for _, finding := range findings {
			if finding.Feature == "" || finding.Message == "" || finding.Where == "" {
				t.Errorf("a finding says nothing: %#v", finding)
			}
		}
	}
}
