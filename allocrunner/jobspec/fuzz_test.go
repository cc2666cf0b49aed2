package jobspec_test

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/must"
)

func seed(f *testing.F) {
	f.Helper()
	for _, pattern := range []string{"testdata/*.hcl", "testdata/*.json", "../../examples/*.hcl"} {
		files := must.Get(filepath.Glob(pattern))(f)
		for _, file := range files {
			body := must.Read(f, file)
			f.Add(body)
		}
	}
	for _, body := range []string{`job "j" {}`, `{"ID":"x"}`, `{"Job":{"ID":"x","TaskGroups":[{}]}}`,
		inTask("config {\na \"b\" {}\n}"),
		inTask("user = \"${a.b[0].*.c}$${d}%{ if e }f%{ endif }\""), inTask("env = { for k, v in { a = b } : k => v }"),
		"variable \"a\" {\ntype = list(string)\n}\nvariables { b = [c] }\nlocals { d = local.e }\njob \"j\" {}",
		`{"ID":"x","Update":{},"Multiregion":{},"Periodic":{},"TaskGroups":[{"Update":{},"Scaling":{},` +
			`"Services":[{"Checks":[{}],"Connect":{"Gateway":{}}}],"Tasks":[{"Templates":[{}],"Vault":{},"Resources":{}}]}]}`} {
		f.Add([]byte(body))
	}
}

// FuzzParse: no text makes it panic, and a job that is read survives being written as JSON and read again.
func FuzzParse(f *testing.F) {
	seed(f)
	dir := f.TempDir()
	longNumber := regexp.MustCompile(`[0-9][eE]\+?[0-9]{5}`)
	f.Fuzz(func(t *testing.T, body []byte) {
		if longNumber.Match(body) {
			t.Skip("takes any time, as package bounded tests")
		}
		job, err := jobspec.Parse(jobspec.Config{Filename: "job", Dir: dir, Body: body})
		if err != nil {
			_ = err.Error()
			return
		}
		first := encode(t, job)
		again, err := jobspec.Parse(jobspec.Config{Filename: "again.json", Body: first})
		if err != nil {
			if len(first) > 4<<20 || *job.ID == "" {
				return // larger as JSON than a job file may be; or nameless, which JSON jobs can't be
			}
			t.Fatalf("the job's own JSON is refused: %v\n%s", err, first)
		}
		if diff := cmp.Diff(string(first), string(encode(t, again))); diff != "" {
			t.Errorf("the JSON read again differs (-first +second):\n%s", diff)
		}
	})
}
