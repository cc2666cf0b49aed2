package jobspec_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func jobFiles(tb testing.TB) []string {
	tb.Helper()
	files, err := filepath.Glob("testdata/*.nomad.hcl")
	if err != nil || len(files) == 0 {
		tb.Fatalf("testdata/*.nomad.hcl: %v, %v", files, err)
	}
	return files
}

func encode(tb testing.TB, job *api.Job) []byte {
	tb.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	must.OK(tb, enc.Encode(job))
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	for _, file := range jobFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			job := must.Get(parseFile(file, nil, jobspec.Config{Audience: "nomadproject.io"}))(t)
			got, golden := encode(t, job), strings.TrimSuffix(file, ".nomad.hcl")+".golden.json"
			if *update {
				must.OK(t, os.WriteFile(golden, got, 0o644))
			}
			want := must.Read(t, golden)
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", golden, diff)
			}
			again := must.Get(jobspec.Parse(jobspec.Config{Filename: golden, Body: got, Audience: "nomadproject.io"}))(t)
			if diff := cmp.Diff(string(got), string(encode(t, again))); diff != "" {
				t.Errorf("the JSON read again differs (-first +second):\n%s", diff)
			}
		})
	}
}

// TestGoldenCoversEveryField proves that the golden files use every block and argument that the SDK's structs know.
func TestGoldenCoversEveryField(t *testing.T) {
	set := map[string]bool{}
	for _, file := range jobFiles(t) {
		body := must.Read(t, file)
		job := must.Get(jobspec.Decode(jobspec.Config{Filename: file, Dir: "testdata", Body: body}))(t)
		markSet(reflect.ValueOf(job), set)
	}
	known := map[string]bool{}
	collectTagged(reflect.TypeFor[api.Job](), known, map[reflect.Type]bool{})
	if len(known) < 300 {
		t.Fatalf("only %d tagged fields found: the walk is broken", len(known))
	}
	var missing []string
	for name := range known {
		if !set[name] {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("no golden file sets:\n%s", strings.Join(missing, "\n"))
	}
}

func collectTagged(t reflect.Type, known map[string]bool, seen map[reflect.Type]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || seen[t] {
		return
	}
	seen[t] = true
	for f := range t.Fields() {
		if _, ok := f.Tag.Lookup("hcl"); !ok {
			continue
		}
		known[t.Name()+"."+f.Name] = true
		collectTagged(f.Type, known, seen)
	}
}

func markSet(v reflect.Value, set map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			markSet(v.Elem(), set)
		}
	case reflect.Slice:
		for i := range v.Len() {
			markSet(v.Index(i), set)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			markSet(v.MapIndex(key), set)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				set[v.Type().Name()+"."+v.Type().Field(i).Name] = true
				markSet(v.Field(i), set)
			}
		}
	}
}

// serversOwn are the values in which a canonical job differs from a server's answer, with the reasons.
var serversOwn = map[string]string{
	".TaskGroups[].Constraints":         "a server adds those that keep a group from nodes that can't run it",
	".TaskGroups[].Tasks[].Constraints": "as for groups",
	".TaskGroups[].Scaling.ID":          "a server gives each policy of a group an ID, for an autoscaler",
	".TaskGroups[].Services[].CheckRestart": "the checks have it, as on a server; it stays so that a finding about it " +
		"names its place",
	".TaskGroups[].Tasks[].Services[].Identity.Name":        "a service gets no identity of its own here",
	".TaskGroups[].Tasks[].Services[].Identity.ServiceName": "as for the name",
	".Status":      "it is that of the registered job, as are the values below",
	".CreateIndex": "of the registration", ".ModifyIndex": "of the registration", ".JobModifyIndex": "of the registration",
	".NomadTokenID": "of the registration", ".SubmitTime": "of the registration",
}

var index = regexp.MustCompile(`\[\d+\]`)

// TestSameAsServer compares canonical jobs with the recorded answers of a Nomad server to GET /v1/job/:id. The records
// have no empty values, indexes or times. A test of package wire compares the fields that the SDK lacks.
func TestSameAsServer(t *testing.T) {
	seen := map[string]bool{}
	for _, recorded := range must.Get(filepath.Glob("testdata/*/*.server.json"))(t) {
		name := strings.TrimSuffix(recorded, ".server.json")
		t.Run(filepath.Base(name), func(t *testing.T) {
			inputs := must.Get(filepath.Glob(name + ".nomad.*"))(t)
			job := must.Get(parseFile(inputs[0], nil, jobspec.Config{Audience: "nomadproject.io"}))(t)
			var got, want any
			must.OK(t, json.Unmarshal(encode(t, job), &got))
			answered := must.Get(jobspec.DecodeJob(must.Read(t, recorded)))(t)
			must.OK(t, json.Unmarshal(encode(t, answered), &want))
			for _, d := range differences(got, want, "") {
				where := index.ReplaceAllString(d.path, "[]")
				if seen[where] = true; serversOwn[where] == "" {
					t.Errorf("%s: %v, and a server has %v", d.path, d.got, d.want)
				}
			}
		})
	}
	for where := range serversOwn {
		if !seen[where] {
			t.Errorf("no recorded job differs in %s", where)
		}
	}
}

// empty reports whether a value of JSON is one that recorded answers lack.
func empty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return !slices.ContainsFunc(slices.Collect(maps.Values(v)), func(member any) bool { return !empty(member) })
	case []any:
		return len(v) == 0
	}
	return v == nil || v == "" || v == false || v == 0.0
}

// difference is a value of two JSON documents that differs, and where it is.
type difference struct {
	path      string
	got, want any
}

func differences(got, want any, path string) (all []difference) {
	g, isMap := got.(map[string]any)
	w, alsoMap := want.(map[string]any)
	if isMap && alsoMap {
		for key := range g {
			all = append(all, differences(g[key], w[key], path+"."+key)...)
		}
		for key := range w {
			if _, ok := g[key]; !ok {
				all = append(all, differences(nil, w[key], path+"."+key)...)
			}
		}
		return all
	}
	gl, isList := got.([]any)
	wl, alsoList := want.([]any)
	if isList && alsoList && len(gl) == len(wl) {
		for i := range gl {
			all = append(all, differences(gl[i], wl[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
		return all
	}
	if empty(got) && empty(want) || reflect.DeepEqual(got, want) {
		return nil
	}
	return []difference{{path, got, want}}
}
