package rawexec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	got, err := parse(map[string]any{
		"command": "app", "args": []any{"a", 1, true,
			2.5}, "work_dir": "/srv", "oom_score_adj": "10", "denied_envvars": []string{"AWS_*"},
	})
	want := config{Command: "app", Args: []string{"a", "1", "true", "2.5"}, WorkDir: "/srv", OOMScoreAdj: 10,
		DeniedEnvvars: []string{"AWS_*"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, c := range []struct {
		config map[string]any
		want   string
	}{
		{nil, "command is missing"},
		{map[string]any{"command": []any{"x"}}, "command must be a string, not a list"},
		{map[string]any{"command": "x", "args": "y"}, "args must be a list of strings, not a string"},
		{map[string]any{"command": "x", "args": []any{"y", map[string]any{}}}, "item 2 is a block or map"},
		{map[string]any{"cmd": "/bin/echo", "args": []any{"y"}}, `unknown key "cmd": write command = "/bin/echo"`},
		{map[string]any{"cmd": "echo hi"}, `write command = "echo" and args = ["hi"]`},
		{map[string]any{"command": "x", "arguments": []any{"-c", "a < b"}}, `write args = ["-c", "a < b"]`},
		{map[string]any{"comand": strings.Repeat("x", 200)}, `write command = ...`},
		{map[string]any{"command": "x", "image": "y"}, `no container`},
		{map[string]any{"command": "x", "volumes": "y"},
			`unknown key "volumes"; known are args, cgroup_v1_override, cgroup_v2_override, command`},
		{map[string]any{"command": "x", "cgroup_v2_override": "y"}, "cgroup_v2_override is not supported"},
		{map[string]any{"command": "x", "work_dir": "y"}, "absolute"},
		{map[string]any{"command": "x", "oom_score_adj": -5}, "0 to 1000"},
		{map[string]any{"command": "x", "oom_score_adj": true}, "whole number"},
	} {
		if _, err := parse(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.config, err, c.want)
		}
	}
}

func TestScrub(t *testing.T) {
	c := config{DeniedEnvvars: []string{"EXACT", "AWS_*", "*_KEY", "*SECRET*"}}
	env := []string{"EXACT=1", "EXACTLY=1", "AWS_X=1", "MY_KEY=1", "A_SECRET_B=1", "PATH=/bin"}
	if diff := cmp.Diff([]string{"EXACTLY=1", "PATH=/bin"}, c.scrub(env)); diff != "" {
		t.Error(diff)
	}
}
