package bounded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/must"
)

// job returns a job file with locals and the value of one meta.
func job(locals, value string) jobspec.Config {
	body := fmt.Sprintf("locals {\n%s\n}\njob \"x\" {\n  meta = { a = %s }\n}\n", locals, value)
	return jobspec.Config{Filename: "x.hcl", Body: []byte(body)}
}

// TestParseIsJobspecs: the way through another process changes no job, and no error about one.
func TestParseIsJobspecs(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../testdata/*.hcl", "../testdata/*.json", "../testdata/*/*.hcl",
		"../../../examples/*.hcl"} {
		found := must.Get(filepath.Glob(pattern))(t)
		files = append(files, found...)
	}
	if len(files) < 10 {
		t.Fatalf("job files: %q", files)
	}
	for _, file := range files {
		cfg := must.Get(jobspec.ReadFile(file, nil, jobspec.Config{Audience: "a"}))(t)
		for _, cfg.AsWritten = range []bool{true, false} {
			want, wantErr := jobspec.Parse(cfg)
			got, err := Parse(t.Context(), cfg)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) ||
				errors.Is(err, jobspec.ErrInvalid) != errors.Is(wantErr, jobspec.ErrInvalid) {
				t.Errorf("%s: %v, want %v", file, err, wantErr)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-jobspec's +this):\n%s", file, diff)
			}
		}
	}
}

// TestFromFilesComeBack: the texts that no message may quote are known here, too.
func TestFromFilesComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	must.OK(t, os.WriteFile(path, []byte("hunter2"), 0o600))
	cfg := job("", fmt.Sprintf("upper(file(%q))", path))
	cfg.FromFiles = &jobspec.FromFiles{}
	if _, err := Parse(t.Context(), cfg); err != nil || cfg.FromFiles.Mask("it is HUNTER2") != "it is (from a file)" {
		t.Errorf("%v, %q", err, cfg.FromFiles.Texts)
	}
}

// TestBytesArrive: an error about a text that is not UTF-8 is the same as without another process.
func TestBytesArrive(t *testing.T) {
	cfg := job("", `"x"`)
	cfg.Vars = []string{"a=\xff"}
	_, want := jobspec.Parse(cfg)
	if _, err := Parse(t.Context(), cfg); err == nil || err.Error() != want.Error() {
		t.Errorf("%v, want %v", err, want)
	}
}
