package taskenv_test

import (
	"errors"
	"strings"
	"testing"

	"taskapi/allocrunner/taskenv"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestEvalConfig(t *testing.T) {
	cfg := newConfig()
	cfg.Task.Env = map[string]string{"WHO": "wörld", "a.b": "dotted", "a": "plain"}
	env := taskenv.New(cfg)
	for _, c := range []struct {
		in   any
		want any
	}{
		{"plain", "plain"},
		{"hello ${WHO}", "hello wörld"},
		{"${NOMAD_TASK_NAME}-${NOMAD_PORT_http}", "main-20530"},
		{`${env["WHO"]} ${env.WHO}`, "wörld wörld"},
		{`${env["a.b"]} ${a}`, "dotted plain"},
		{"${attr.kernel.name} ${attr.unique.network.ip-address}", "linux 192.0.2.7"},
		{"${node.datacenter} ${node.unique.id}", "dc1 node-id"},
		{"${meta.rack} ${meta.team}", "r1 blue"},
		{"${NOMAD_META_team}", "blue"},
		{"${NOMAD_ALLOC_PORT_admin-api}", "8080"},
		{`%{ if WHO == "wörld" }yes%{ else }no%{ endif }`, "yes"},
		{`${upper(NOMAD_TASK_NAME)}`, "MAIN"},
		{"$${literal} %%{ if }", "${literal} %{ if }"},
		{"${1 + 2}", 3},
		{"${1.5 * 1}", 1.5},
		{"${true}", true},
		{"${[1, NOMAD_DC]}", []any{1, "dc1"}},
		{"${{a = NOMAD_DC}}", map[string]any{"a": "dc1"}},
		{[]any{"${WHO}", 7, true, nil}, []any{"wörld", 7, true, nil}},
		{[]string{"-c", "${WHO}"}, []any{"-c", "wörld"}},
		{[]map[string]any{{"k": "${WHO}"}}, []any{map[string]any{"k": "wörld"}}},
		{map[string]any{"k": []any{"${WHO}"}}, map[string]any{"k": []any{"wörld"}}},
	} {
		got, err := env.EvalConfig(map[string]any{"x": c.in})
		if err != nil {
			t.Errorf("EvalConfig(%v): %v", c.in, err)
			continue
		}
		same.As(t, c.want, got["x"], "EvalConfig(", c.in, ")")
	}
}

func TestEvalConfigErrors(t *testing.T) {
	env := taskenv.New(newConfig())
	for in, want := range map[string]string{
		"${NOMAD_NOPE}": `Unknown variable: There is no variable named "NOMAD_NOPE". In config x.`,
		"${attr.nope}":  `Unsupported attribute: This object does not have an attribute named "nope". In config x.`,
		`${env["NOPE"]}`: "Invalid index: The given key does not identify an element in this collection value. In " +
			"config x.",
		"${nope()}":           `Call to unknown function: There is no function named "nope".`,
		"${":                  "In config x.",
		"%{ if true }":        "In config x.",
		"${null}":             "Invalid value: the expression gives null. In config x.",
		"${attr.kernel.name.": "In config x.",
	} {
		out, err := env.EvalConfig(map[string]any{"x": in})
		if _, ok := errors.AsType[*taskenv.ConfigError](err); !ok || out != nil {
			t.Errorf("EvalConfig(%q) = %v, %v; want a ConfigError alone", in, out, err)
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("EvalConfig(%q): %q does not say %q", in, err, want)
		}
	}
}

// The text is that of Nomad's event, but for the place.
func TestEvalConfigNamesEveryProblem(t *testing.T) {
	_, err := taskenv.New(newConfig()).EvalConfig(map[string]any{
		"command": "${NOMAD_NOPE}", "args": []any{"ok", "${ALSO_NOT}"},
	})
	const want = "3 errors occurred:\n\t* failed to parse config: " +
		"\n\t* Unknown variable: There is no variable named \"ALSO_NOT\". In config args[1]." +
		"\n\t* Unknown variable: There is no variable named \"NOMAD_NOPE\". In config command."
	if err == nil || err.Error() != want {
		t.Errorf("got  %q\nwant %q", err, want)
	}
}

func TestEvalConfigLeavesItsInput(t *testing.T) {
	in := map[string]any{"args": []any{"${NOMAD_DC}"}}
	must.Get(taskenv.New(newConfig()).EvalConfig(in))(t)
	same.As(t, map[string]any{"args": []any{"${NOMAD_DC}"}}, in, "the input changed")
	if out, err := taskenv.New(newConfig()).EvalConfig(nil); err != nil || len(out) != 0 {
		t.Errorf("without a configuration: %v, %v", out, err)
	}
}

func FuzzEvalConfig(f *testing.F) {
	for _, s := range []string{"", "${NOMAD_DC}", "%{ for x in [1] }${x}%{ endfor }", `${env["a"]}`,
		"${[for k, v in env : v]}", "${-", "$${", "${int(1/0)}"} {
		f.Add(s)
	}
	env := taskenv.New(newConfig())
	f.Fuzz(func(t *testing.T, s string) {
		out, err := env.EvalConfig(map[string]any{"x": s})
		if (err == nil) == (out == nil) {
			t.Errorf("EvalConfig(%q) = %v, %v", s, out, err)
		}
	})
}
