package settings

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/artifacts"
	"taskapi/allocrunner/devices"
	"taskapi/allocrunner/volumes"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/internal/must"
)

// TestLaxer: a setting that gives tasks more is named, in one direction. Settings that give as much or less are
// not laxer.
func TestLaxer(t *testing.T) {
	type of = agent.Settings
	group := &api.TaskGroup{Tasks: []*api.Task{{Name: "web"}}}
	job := &api.Job{Namespace: new("default"), TaskGroups: []*api.TaskGroup{group}}
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "policy.hcl")
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	wide, otherTask := file(`task "web" { capabilities = ["alloc-exec"] }`),
		file(`task "db" { capabilities = ["alloc-exec"] }`)
	shared := `namespace "default" {
		variables {
			path "shared/*" { capabilities = ["read"] }
		}
	}`
	rules, same := file(shared), file(shared)
	readOnly := volumes.Volume{Name: "v", Path: "/srv/v", ReadOnly: true}
	writable := volumes.Volume{Name: "v", Path: "/srv/v"}
	gpu := devices.Device{Name: "a/gpu/b", Instances: []devices.Instance{{ID: "0"}}}
	for i, test := range []struct {
		lax, strict of
		name        string
	}{
		{lax: of{}, strict: of{IsolateUsers: "80000-89999"}, name: "isolate_users"},
		{lax: of{IsolateUsers: "1-2"}, strict: of{IsolateUsers: "3-4"}},
		{lax: of{}, strict: of{Policy: "nomad"}, name: "policy"},
		{lax: of{}, strict: of{Policy: "local"}},
		{lax: of{Policy: wide}, strict: of{}, name: "policy"},
		{lax: of{Policy: otherTask}, strict: of{}},
		{lax: of{Policy: rules}, strict: of{Policy: same}},
		{lax: of{Policy: rules}, strict: of{Policy: file(`task "web" { policy = "deny" }`)}, name: "policy"},
		{lax: of{Policy: wide, AllowSharedUser: true}, strict: of{Policy: wide}, name: "allow_shared_user"},
		{lax: of{Unlimited: true}, strict: of{}, name: "enforce_resources"},
		{lax: of{Devices: []devices.Device{gpu}}, strict: of{}, name: "device"},
		{lax: of{HostVolumes: []volumes.Volume{readOnly}}, strict: of{}, name: "host_volume"},
		{lax: of{HostVolumes: []volumes.Volume{writable}},
			strict: of{HostVolumes: []volumes.Volume{readOnly}}, name: "host_volume"},
		{lax: of{Artifacts: artifacts.Settings{FileDirs: []string{"/etc"}}}, strict: of{},
			name: "artifact.file_dirs"},
		{lax: of{JWKS: []string{"/etc/keys"}}, strict: of{}, name: "identity.jwks"},
		{lax: of{}, strict: of{AuditLog: "/var/log/a"}, name: "audit.path"},
		{lax: of{AuditLog: "/var/log/a"}, strict: of{AuditLog: "/var/log/b", AuditRequired: true},
			name: "audit.required"},
		{lax: of{AuditLog: "/var/log/a"}, strict: of{AuditLog: "/var/log/b", AuditReads: true},
			name: "audit.reads"},
	} {
		if name := must.Get(Laxer(test.lax, test.strict, job))(t); name != test.name {
			t.Errorf("row %d: the laxer setting is %q, want %q", i, name, test.name)
		}
		if name := must.Get(Laxer(test.strict, test.lax, job))(t); name != "" {
			t.Errorf("row %d: the stricter settings have the laxer setting %q", i, name)
		}
	}
	if _, err := Laxer(of{Policy: "/nowhere"}, of{}, job); err == nil {
		t.Error("a policy that can't be read is as strict as another")
	}
}
