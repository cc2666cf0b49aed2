package settings

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskapi/allocrunner/consul"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestNext: which of several words about a setting counts.
func TestNext(t *testing.T) {
	file := Values{
		{"host_ip", []string{"::1"}, "/f:1"}, {"policy", []string{"nomad"}, "/f:2"},
		{"isolate_users", []string{"5-9"}, "/f:3"}, {"consul.address", []string{"file:1"}, "/f:4"},
		{"consul.token_file", []string{"/file"}, "/f:5"}, {"consul.enabled", []string{"false"}, "/f:6"},
	}
	before := Record{Values: Values{
		{"host_ip", []string{"127.0.0.9"}, "/old:1"}, {"policy", []string{"local"}, "--policy"},
		{"identity.ttl", []string{"2h"}, "-o"}, {"isolate_users", []string{"1-2"}, "/old:2"},
	}}
	for name, c := range map[string]struct {
		before Record
		given  Values
		env    map[string]string
		want   map[string]string // the value and its place, where it is not the file's; empty for none
		consul string            // the address of the agent
	}{
		"a first run": {consul: "file:1"},
		"what is given now": {given: Values{{"host_ip", []string{"127.0.0.3"}, "-o"}},
			want: map[string]string{"host_ip": "127.0.0.3 -o"}, consul: "file:1"},
		"what is remembered, and the users of tasks that may run": {before: before, want: map[string]string{
			"policy": "local --policy", "identity.ttl": "2h -o", "isolate_users": "1-2 /old:2"}, consul: "file:1"},
		"what is taken back": {before: before,
			given: Values{{Key: "policy", From: "--policy"}, {Key: "identity.ttl", From: "-o"}},
			want:  map[string]string{"isolate_users": "1-2 /old:2"}, consul: "file:1"},
		"users of tasks without any": {before: Record{Values: Values{}}, want: map[string]string{"isolate_users": ""},
			consul: "file:1"},
		// a token of one agent must not go to another
		"the environment's Consul": {env: map[string]string{"CONSUL_HTTP_ADDR": "env:1"},
			want: map[string]string{"consul.address": "", "consul.token_file": ""}, consul: "env:1"},
		"an earlier environment's Consul": {before: Record{Values: Values{}, ConsulEnv: consul.Settings{Address: "old:1"}},
			want:   map[string]string{"isolate_users": "", "consul.address": "", "consul.token_file": ""},
			consul: "old:1"},
	} {
		t.Run(name, func(t *testing.T) {
			next := must.Get(c.before.Next(c.given, file, func(key string) string { return c.env[key] }))(t)
			want := placed(file)
			maps.Copy(want, c.want)
			maps.DeleteFunc(want, func(_, value string) bool { return value == "" })
			same.As(t, want, placed(next.Values))
			if s, err := next.Settings(); err != nil || s.ConsulAgent().Address != c.consul {
				t.Errorf("Consul at %q, %v, want %q", s.ConsulAgent().Address, err, c.consul)
			}
			dir := t.TempDir()
			must.OK(t, next.Save(dir))
			if kept, err := Read(dir); err != nil || !cmp.Equal(kept, next) {
				t.Errorf("kept as %+v, %v; want %+v", kept, err, next)
			}
		})
	}
}

// placed returns each value with its place.
func placed(values Values) map[string]string {
	all := map[string]string{}
	for _, v := range values {
		all[v.Key] = strings.Join(v.Texts, " ") + " " + v.From
	}
	return all
}

// TestRecordWithoutValues is one, so a machine's new users are not those of tasks that run.
func TestRecordWithoutValues(t *testing.T) {
	dir := t.TempDir()
	first := must.Get(Record{}.Next(nil, nil, func(string) string { return "" }))(t)
	must.OK(t, first.Save(dir))
	kept := must.Get(Read(dir))(t)
	next, err := kept.Next(nil, Values{{"isolate_users", []string{"true"}, "/f:1"}}, func(string) string { return "" })
	if err != nil || len(next.Values) > 0 {
		t.Errorf("%+v, %v, want no users", next, err)
	}
}

// TestBadRecords are named, and not taken for none.
func TestBadRecords(t *testing.T) {
	for name, text := range map[string]string{
		"broken": "{", "senseless": `{"settings":[{"key":"host_ip","values":["x"],"from":"-o"}]}`,
		"of another form": `{"host_ip":"127.0.0.1","policy":"nomad"}`,
	} {
		dir := t.TempDir()
		must.OK(t, os.WriteFile(filepath.Join(dir, recordName), []byte(text), 0o600))
		if got, err := Read(dir); err == nil || !strings.Contains(err.Error(), recordName) {
			t.Errorf("%s: %+v, %v, want an error that names the file", name, got, err)
		}
	}
	if got, err := Read(t.TempDir()); err != nil || got.Values != nil {
		t.Errorf("none: %+v, %v", got, err)
	}
}

// TestEveryKey: each setting takes its default's text, and refuses a value that can't be meant.
func TestEveryKey(t *testing.T) {
	for _, k := range Keys() {
		if k.Default == "" {
			continue
		}
		var all Values
		if err := all.Set(k.Name, k.Default, "/", "-o"); err != nil {
			t.Error(err)
		}
		if _, err := all.resolve(); err != nil {
			t.Errorf("the default: %v", err)
		}
	}
	for key, text := range map[string]string{
		"isolate_users": "0-5", "allow_shared_user": "maybe", "host_ip": "localhost", "identity.issuer": "nowhere",
		"identity.ttl": "1ms", "telemetry.listen": "9100", "consul.enabled": "here", "limits.off": "x", "limits.streams": "0",
		"limits.failed_lookups": "often", "audit.required": "7",
	} {
		all := Values{{key, []string{text}, "/f:3"}}
		if _, err := all.resolve(); err == nil || !strings.HasPrefix(err.Error(), "/f:3: "+key+": ") {
			t.Errorf("%s = %s: %v, want an error with the place", key, text, err)
		}
	}
}
