package jobspec_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestVariablePrecedence(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	first, second := file("first.hcl", `v = "first"`), file("second.json", `{"v": "second"}`)
	env := []string{"NOMAD_VAR_v=env", "NOMAD_VAR_unknown=x", "PATH=/bin"}
	for name, tc := range map[string]struct {
		cfg  jobspec.Config
		want string
	}{
		"default":            {jobspec.Config{}, "default"},
		"environment":        {jobspec.Config{Environ: env}, "env"},
		"file over env":      {jobspec.Config{Environ: env, VarFiles: []string{first}}, "first"},
		"later file":         {jobspec.Config{VarFiles: []string{first, second}}, "second"},
		"flag over file":     {jobspec.Config{Environ: env, VarFiles: []string{first}, Vars: []string{"v=flag"}}, "flag"},
		"later flag":         {jobspec.Config{Vars: []string{"v=one", "v=two=2"}}, "two=2"},
		"empty":              {jobspec.Config{Vars: []string{"v="}}, ""},
		"text stays text":    {jobspec.Config{Vars: []string{`v="quoted" ${x}`}}, `"quoted" ${x}`},
		"runtime in a file":  {jobspec.Config{VarFiles: []string{file("r.hcl", `v = "${NOMAD_X}"`)}}, "${NOMAD_X}"},
		"empty file":         {jobspec.Config{VarFiles: []string{file("e.hcl", "\n")}}, "default"},
		"environment, empty": {jobspec.Config{Environ: []string{"NOMAD_VAR_v="}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.Body = []byte("variable \"v\" {\ntype = string\ndefault = \"default\"\n}\njob \"j\" {\nmeta { v = " +
				"\"[${var.v}]\" }\n}\n")
			job := must.Get(jobspec.Parse(tc.cfg))(t)
			if got := job.Meta["v"]; got != "["+tc.want+"]" {
				t.Errorf("got %s, want [%s]", got, tc.want)
			}
		})
	}
}

func TestVariableTypes(t *testing.T) {
	for name, tc := range map[string]struct{ declaration, flag, use, want string }{
		"number": {"type = number", "v=5", "${var.v + 1}", "6"},
		"bool":   {"type = bool", "v=true", "${!var.v}", "false"},
		"list":   {"type = list(string)", `v=["a","b"]`, `${join("-", var.v)}`, "a-b"},
		"map":    {"type = map(number)", `v={x=1}`, "${var.v.x}", "1"},
		"optional": {"type = object({a=string, b=optional(string, \"z\")})", `v={a="y"}`, "${var.v.a}${var.v.b}",
			"yz"},
		"any of plain":       {"type = any", "v=plain text", "${var.v}", "plain text"},
		"untyped":            {"", "v=plain", "${var.v}", "plain"},
		"untyped list":       {"default = []", `v=["a","b"]`, "${length(var.v)}", "2"},
		"runtime in a list":  {"type = list(string)", `v=["${NOMAD_X}"]`, "${var.v[0]}", "${NOMAD_X}"},
		"untyped, a default": {"default = \"d\"", `v=["a"]`, "${var.v}", `["a"]`},
	} {
		t.Run(name, func(t *testing.T) {
			body := "variable \"v\" {\n" + tc.declaration + "\n}\njob \"j\" {\nmeta { v = \"" + tc.use + "\" }\n}\n"
			job, err := jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(body), Vars: []string{tc.flag}})
			must.OK(t, err)
			same.As(t, tc.want, job.Meta["v"])
		})
	}
}

func TestVariableErrors(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	for name, tc := range map[string]struct {
		cfg  jobspec.Config
		want string
	}{
		"undeclared flag": {jobspec.Config{Vars: []string{"count2=1"}},
			`-var count2: the job file declares no variable "count2". Did you mean "count"?`},
		"no value": {jobspec.Config{Vars: []string{"count"}}, `-var "count" must be name=value`},
		"no name":  {jobspec.Config{Vars: []string{"=1"}}, `must be name=value`},
		"wrong type": {jobspec.Config{Vars: []string{"count=many"}},
			`-var count:1:1: Unsuitable value for a variable: Variable "count": a number is required.`},
		"not an expression": {jobspec.Config{Vars: []string{"list=[1"}}, `-var list:1:1`},
		"wrong in environment": {jobspec.Config{Environ: []string{"NOMAD_VAR_count=x"}},
			`NOMAD_VAR_count in the environment:1:1`},
		"undeclared in a file": {jobspec.Config{VarFiles: []string{file("u.hcl", "\ncuont = 1")}},
			`u.hcl:2:1: Undeclared variable: the job file declares no variable "cuont". Did you mean "count"?`},
		"undeclared in JSON": {jobspec.Config{VarFiles: []string{file("u.json", `{"nope": 1}`)}},
			`the job file declares no variable "nope"`},
		"block in a file": {jobspec.Config{VarFiles: []string{file("b.hcl", "job \"x\" {}")}},
			`b.hcl:1:1: Unexpected "job" block`},
		"syntax in a file": {jobspec.Config{VarFiles: []string{file("s.hcl", "count =")}}, `s.hcl:1:8`},
		"broken JSON": {jobspec.Config{VarFiles: []string{file("s.json", `{"count":`)}},
			`unexpected end of JSON input`},
		"deep JSON": {jobspec.Config{VarFiles: []string{file("d.json", strings.Repeat("[", 100_000))}},
			`exceeded max depth`},
		"missing file":  {jobspec.Config{VarFiles: []string{filepath.Join(dir, "none")}}, `none does not exist`},
		"directory":     {jobspec.Config{VarFiles: []string{dir}}, `it is a directory`},
		"var in a file": {jobspec.Config{VarFiles: []string{file("v.hcl", "count = var.list")}}, `v.hcl:1:9`},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.Filename = "job.hcl"
			tc.cfg.Body = []byte("variable \"count\" {\ntype = number\ndefault = 1\n}\nvariable \"list\" {\ntype = " +
				"list(number)\ndefault = []\n}\njob \"j\" {}\n")
			_, err := jobspec.Parse(tc.cfg)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got:\n%v\nwant:\n%s", err, tc.want)
			}
			if !errors.Is(err, jobspec.ErrInvalid) {
				t.Errorf("%v is not ErrInvalid", err)
			}
		})
	}
}
