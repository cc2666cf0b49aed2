package workload_test

import (
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/identity"
	"taskapi/identity/workload"
	"taskapi/internal/must"
)

// extraConfig is that of a manager with claims of the settings, and with the job as it is at the time.
func extraConfig(r *runner, job *api.Job) workload.Config {
	return workload.Config{
		Keyring: r.ring, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Audiences: []string{"nomadproject.io"},
		TTL: 24 * time.Hour, Region: "global", Namespace: "apps", JobID: "parent", TaskGroup: "g", AllocationID: "alloc",
		ExtraClaims: workload.ExtraClaims{
			Required: map[string]string{"req": "${job.namespace}/${job.id}/${node.datacenter}/${node.class}/${vault.role}/x"},
			Optional: map[string]string{
				"team":  "${job.meta.team}",
				"miss":  "${job.meta.nope}-${foo.bar}-${node.pool}-${alloc.id}-${",
				"all":   "${job.region} ${job.node_pool} ${group.name} ${task.name} ${node.id}",
				"vault": "${vault.cluster}.${vault.namespace}.${vault.role}",
			},
		},
		Job:  func() *api.Job { return job },
		Node: api.Node{ID: "n1", Datacenter: "dc1", NodePool: "default"},
	}
}

// TestExtraClaims has what Nomad 2.0.6 puts into tokens, but for the node of a default identity, which Nomad leaves
// empty.
func TestExtraClaims(t *testing.T) {
	r := newRunner(t, io.Discard)
	m := workload.New(extraConfig(r, &api.Job{NodePool: new("pool"), Meta: map[string]string{"team": "blue"}}))
	task := &api.Task{Name: "t", Vault: &api.Vault{Role: "reader", Namespace: new("team"), Cluster: "default"}}
	for name, want := range map[string]map[string]string{
		"default": {"req": "apps/parent/dc1///x"},
		"x team miss nosuch req": {
			"req": "apps/parent/dc1///x", "team": "blue", "miss": "${job.meta.nope}-${foo.bar}-default-alloc-${",
		},
		"y all vault":         {"req": "apps/parent/dc1///x", "all": "global pool g t n1", "vault": ".."},
		"vault_default vault": {"req": "apps/parent/dc1//reader/x", "vault": "default.team.reader"},
	} {
		names := strings.Fields(name)
		wi := &api.WorkloadIdentity{Name: names[0], Audience: []string{"aud"}, ExtraClaims: names[1:]}
		read := must.Get(identity.Check(must.Get(m.Issue(task, wi))(t)))(t)
		if diff := cmp.Diff(want, read.Claims.ExtraClaims); diff != "" {
			t.Errorf("identity %s (-want +got):\n%s", name, diff)
		}
	}
	path := filepath.Join(t.TempDir(), "token")
	must.Get(m.Operator(path))(t).Stop()
	read := must.Get(identity.Check(must.Get(workload.ReadOperatorToken(path))(t)))(t)
	if read.Claims.ExtraClaims != nil {
		t.Errorf("the operator's token has %v, want no extra claims", read.Claims.ExtraClaims)
	}
}

// TestChangedExtraClaims: a task's file follows the job's metadata, and the settings of the process that takes over.
func TestChangedExtraClaims(t *testing.T) { synctest.Test(t, changedExtraClaims) }

func changedExtraClaims(t *testing.T) {
	r := newRunner(t, io.Discard)
	job := &api.Job{Meta: map[string]string{"team": "blue"}}
	config := extraConfig(r, job)
	task := &api.Task{Name: "t", Identity: &api.WorkloadIdentity{File: true, ExtraClaims: []string{"team"}}}
	team := func() string {
		return must.Get(identity.Check(r.files["secrets/nomad_token"]))(t).Claims.ExtraClaims["team"]
	}
	m := workload.New(config)
	tokens := m.Task(task)
	must.Get(tokens.Start(r.host()))(t)
	m.Renew(t.Context())
	job.Meta = map[string]string{"team": "red"}
	was := team()
	m.Renew(t.Context())
	m.Renew(t.Context())
	if got := team(); was != "blue" || got != "red" {
		t.Errorf("team %q, and %q after the job's change; want blue and red", was, got)
	}
	tokens.Stop()
	config.ExtraClaims.Optional = map[string]string{"team": "of ${job.meta.team}"}
	mustWrite(t, r.dir, "secrets/nomad_token") // for a look at whether there is a file
	m = workload.New(config)
	tokens = m.Task(task)
	defer tokens.Stop()
	must.Get(tokens.Resume(r.host(), r.saved))(t)
	m.Renew(t.Context())
	m.Renew(t.Context())
	if got := team(); got != "of red" {
		t.Errorf("team %q after a resume with other settings, want of red", got)
	}
	r.expect("0s write secrets/nomad_token", "0s write secrets/nomad_token", "0s write secrets/nomad_token")
}

// TestConsulNamespace: an identity for Consul names the namespace of the task's consul block, or else of the group's.
func TestConsulNamespace(t *testing.T) {
	r := newRunner(t, io.Discard)
	m := workload.New(extraConfig(r, &api.Job{TaskGroups: []*api.TaskGroup{
		{Name: new("other"), Consul: &api.Consul{Namespace: "wrong"}},
		{Name: new("g"), Consul: &api.Consul{Namespace: "group"}},
	}}))
	for _, tc := range []struct {
		name, want string
		consul     *api.Consul
	}{
		{"consul_default", "group", nil}, {"consul_default", "task", &api.Consul{Namespace: "task"}},
		{"consul_default", "", &api.Consul{}}, {"vault_default", "", nil}, {"default", "", nil},
	} {
		wi := &api.WorkloadIdentity{Name: tc.name, Audience: []string{"aud"}}
		read := must.Get(identity.Check(must.Get(m.Issue(&api.Task{Name: "t", Consul: tc.consul}, wi))(t)))(t)
		if got := read.Claims.ConsulNamespace; got != tc.want {
			t.Errorf("identity %s, consul block %v: consul_namespace %q, want %q", tc.name, tc.consul, got, tc.want)
		}
	}
}

// TestCheck: what no key ring would sign is found before one is asked.
func TestCheck(t *testing.T) {
	r := newRunner(t, io.Discard)
	job := &api.Job{Meta: map[string]string{"team": "blue"}}
	m := workload.New(extraConfig(r, job))
	task := &api.Task{Name: "t"}
	wi := &api.WorkloadIdentity{ExtraClaims: []string{"team"}}
	must.OK(t, m.Check(task, wi))
	job.Meta["team"] = strings.Repeat("b", 4000)
	must.OK(t, m.Check(task, &api.WorkloadIdentity{}))
	reason, _ := identity.ReasonOf(m.Check(task, wi))
	if reason != identity.ReasonTooLong {
		t.Errorf("reason %q, want %q", reason, identity.ReasonTooLong)
	}
	wi.Name, wi.Audience = "default", []string{"aud"}
	_, err := m.Issue(task, wi)
	if signed, _ := identity.ReasonOf(err); signed != reason {
		t.Errorf("a key ring says %v, and the check %q", err, reason)
	}
}
