package jobspec_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
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

// TestSameAsServer holds the result against the job of a recorded allocation. The exceptions are what a server counts
// and adds for its scheduler, and empty fields that the SDK writes and a server leaves out.
func TestSameAsServer(t *testing.T) {
	job := must.Get(parseFile("testdata/wire.nomad.hcl", nil, jobspec.Config{Audience: "nomadproject.io"}))(t)
	var got, want any
	recorded := must.Read(t, "testdata/wire.server.json")
	must.OK(t, json.Unmarshal(encode(t, job), &got))
	must.OK(t, json.Unmarshal(recorded, &want))
	serversOwn := []string{".CreateIndex", ".ModifyIndex", ".JobModifyIndex", ".NomadTokenID", ".Status", ".SubmitTime",
		".TaskGroups[0].Constraints", ".TaskGroups[0].Services[0].Namespace"}
	for _, path := range differences(got, want, "") {
		if !slices.Contains(serversOwn, path) {
			t.Errorf("%s differs from the server's", path)
		}
	}
}

func empty(v any) bool {
	return v == nil || v == "" || v == false || v == 0.0
}

func differences(got, want any, path string) []string {
	g, isMap := got.(map[string]any)
	w, alsoMap := want.(map[string]any)
	if isMap && alsoMap {
		var paths []string
		for key := range g {
			paths = append(paths, differences(g[key], w[key], path+"."+key)...)
		}
		for key := range w {
			if _, ok := g[key]; !ok {
				paths = append(paths, differences(nil, w[key], path+"."+key)...)
			}
		}
		return paths
	}
	gl, isList := got.([]any)
	wl, alsoList := want.([]any)
	if isList && alsoList && len(gl) == len(wl) {
		var paths []string
		for i := range gl {
			paths = append(paths, differences(gl[i], wl[i], path+"["+string(rune('0'+i))+"]")...)
		}
		return paths
	}
	if empty(got) && empty(want) || reflect.DeepEqual(got, want) {
		return nil
	}
	return []string{path}
}
