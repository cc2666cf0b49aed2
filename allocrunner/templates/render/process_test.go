package render_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/templates/render"
	"taskapi/internal/must"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == render.Command {
		unix.Exit(render.Main()) // os.Exit would let the race detector sleep for a second
	}
	os.Exit(m.Run())
}

func request(texts ...string) render.Request {
	req := render.Request{Env: testEnv, Namespace: "default", Known: known()}
	for _, text := range texts {
		req.Templates = append(req.Templates, render.Template{Text: text, Left: "{{", Right: "}}"})
	}
	return req
}

func session(t *testing.T) *render.Session {
	t.Helper()
	s := must.Get(render.Start(t.Context()))(t)
	t.Cleanup(s.Close)
	return s
}

// TestSession renders several requests in one process, and errors of templates don't end it.
func TestSession(t *testing.T) {
	t.Parallel()
	s := session(t)
	for range 2 {
		got := must.Get(s.Render(request(`{{ env "GREETING" }}`, `{{ with nomadVar "nomad/jobs/web" }}{{ .user }}{{ end }}`,
			`{{ nope }}`, `{{ nomadVar "x" }}`)))(t)
		r := got.Results
		if string(r[0].Output) != "hello" || string(r[1].Output) != "admin" || len(r[3].Missing) != 1 ||
			r[2].Error != `(dynamic): parse: template: :1: function "nope" not defined` {
			t.Errorf("%q", r)
		}
	}
}

// TestHostileTemplates are bounded in output, time, memory and stack, and say which bound they went beyond.
func TestHostileTemplates(t *testing.T) {
	t.Parallel()
	const long = `{{ $s := sprig_repeat 1000000 "x" }}{{ range loop 10000 }}{{ $s }}{{ end }}`
	for _, tc := range []struct{ name, text, want string }{
		{"10 GB of output", long, "may render 16 MiB together"},
		{"output into a value", `{{ define "t" }}` + long + `{{ end }}{{ $x := executeTemplate "t" }}`,
			"may render 16 MiB together"},
		{"an endless loop", `{{ range loop 9000000000000000000 }}{{ end }}`, "seconds of processor time"},
		{"a long text", `{{ $s := sprig_repeat 9000000000 "x" }}`, "MiB of memory"},
		{"many long texts", `{{ range loop 1000 }}{{ scratch.MapSet "m" (print .) (sprig_repeat 9000000 "x") }}{{ end }}`,
			"MiB of memory"},
		{"a template that calls itself", `{{ define "t" }}{{ template "t" }}{{ end }}{{ template "t" }}`,
			"maximum template depth|MiB of stack"},
		{"a template that executes itself", `{{ define "t" }}{{ executeTemplate "t" }}{{ end }}{{ template "t" }}`,
			"maximum template depth|MiB of stack"},
		{"addresses that call themselves", `{{ sockaddr "define \"t\" }}{{ template \"t\" }}{{ end }}{{ template \"t\"" }}`,
			"maximum template depth|MiB of stack"},
		{"many queries", `{{ range $i := loop 2000 }}{{ nomadVar (print $i) }}{{ end }}`, "may read 1000 variables"},
		{"a long query", `{{ nomadVar (sprig_repeat 5000 "x") }}`, "the name is longer than 4096 bytes"},
		{"deep JSON", `{{ parseJSON (sprig_repeat 9000000 "[") }}`, "exceeded max depth"},
		{"a long expression", `{{ regexMatch (sprig_repeat 1000000 "(a*)*") "a" }}`, "expression|memory|processor"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := session(t).Render(request(tc.text))
			words := ""
			switch {
			case err != nil:
				words = err.Error()
			case len(got.Results) == 1:
				words = got.Results[0].Error
			}
			const race = "exit status 66" // out of memory, with the race detector
			for want := range strings.SplitSeq(tc.want+"|"+race, "|") {
				if strings.Contains(words, want) {
					return
				}
			}
			t.Errorf("%.300q", words)
		})
	}
}

// TestErrorsHoldNoValues: neither the values of variables nor parts of them are in errors, but texts of the template
// are.
func TestErrorsHoldNoValues(t *testing.T) {
	for _, tc := range []struct{ text, without, with string }{
		{`{{ with nomadVar "nomad/jobs/web" }}{{ .user.Value | parseInt }}{{ end }}`, "admin", "parseInt"},
		{`{{ with nomadVar "nomad/jobs/web" }}{{ .user.Value | printf "%.4s" | parseInt }}{{ end }}`, "admi", "parseInt"},
		{`{{ with nomadVar "nomad/jobs/web" }}{{ .user.Value | sprig_fail }}{{ end }}`, "admin", "sprig_fail"},
		{`{{ with nomadVar "nomad/jobs/web" }}{{ .password.Value | parseBool }}{{ end }}`, "w<>", "parseBool"},
		{`{{ env "GREETING" | parseBool }}`, "hello", "parseBool"},
		{`{{ env "GREETING" | sprig_fail }}`, "hello", "sprig_fail"},
		{`{{ env "GREETING" | printf "%.3s" | sprig_fail }}`, "hel", "sprig_fail"},
		{`{{ define "t" }}{{ env "GREETING" | printf "%.3s" | sprig_fail }}{{ end }}{{ executeTemplate "t" }}`, "hel",
			"sprig_fail"},
		{`{{ range env "GREETING" | printf "%.3s" }}{{ end }}`, "hel]", "range can't iterate over [redacted]"},
		{`{{ range $a, $b := env "GREETING" | len }}{{ end }}`, "over more", "can't use [redacted]"},
		{`{{ range env "GREETING" | base64Encode }}{{ end }}`, "aGVs", "range can't iterate over [redacted]"},
		{`{{ env "GREETING" | printf "%.3s" | sockaddr }}`, "hel", "sockaddr"},
		{`{{ with nomadVar "nomad/jobs/web" }}{{ index (split "," "a") (len (sprig_repeat 10000 .user.Value)) }}{{ end }}`,
			"50000", "index"},
		{`{{ sprig_fail "not like this" }}`, "[redacted]", "not like this"},
		{`{{ "hello" | parseBool }}`, "[redacted]", "hello"},
		{`{{ with nomadVar "nomad/jobs/web" }}{{ .yaml.Value | printf "%s: [" | parseYAML }}{{ end }}`, "1.5", "yaml"},
	} {
		got := ours(tc.text, false).Error
		if got == "" || strings.Contains(got, tc.without) || !strings.Contains(got, tc.with) {
			t.Errorf("%s\n  fails with %q", tc.text, got)
		}
	}
}
