package handlers_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	"taskapi/allocrunner/cluster/variables"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/internal/must"
)

func TestSDKNodes(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute)
	nodes := s.sdk(t, operator).Nodes()
	list, _, err := nodes.List(&api.QueryOptions{Params: map[string]string{"resources": "true", "os": "true"}})
	if err != nil || len(list) != 1 || list[0].ID != anyNode || list[0].Name != "vm" || list[0].Version != "2.0.6-dev" ||
		list[0].NodeResources.Memory.MemoryMB != 64 || list[0].Attributes["os.name"] != "debian" ||
		list[0].Address != "192.0.2.7" {
		t.Fatalf("list = %+v, %v", list[0], err)
	}
	for prefix, want := range map[string]int{"1111": 1, "2": 0} {
		if list, _, err := nodes.PrefixList(prefix); err != nil || len(list) != want || want == 1 &&
			list[0].NodeResources != nil {
			t.Errorf("list with prefix %q = %v, %v; want %d without resources", prefix, list, err, want)
		}
	}
	node, _, err := nodes.Info(anyNode, nil)
	if err != nil || node.ID != anyNode || node.Status != "ready" || node.NodePool != "default" ||
		node.Datacenter != "dc1" {
		t.Errorf("node = %+v, %v", node, err)
	}
	if node.HTTPAddr != "" {
		t.Error("the node has an HTTP address: clients would leave the socket for it")
	}
	allocs, _, err := nodes.Allocations(anyNode, nil)
	if err != nil || len(allocs) != 1 || allocs[0].ID != allocID {
		t.Errorf("allocations = %v, %v", allocs, err)
	}
	_, _, err = nodes.Info(allocID, nil)
	wantSDKError(t, err, 404, "node not found")
	_, _, err = nodes.Info("1111", nil)
	wantSDKError(t, err, 400, `node ID "1111" must be a UUID of 36 characters, not 4`)
	_, _, err = s.sdk(t, goodToken).Nodes().List(nil)
	wantSDKError(t, err, 403, "Permission denied")
}

// TestNodePolicy: who may use the machine and read no job sees the machine, sets its metadata, hears of them, and
// learns nothing of the allocation.
func TestNodePolicy(t *testing.T) {
	log := events.New()
	log.Begin()
	put(t, log, 40, nil)
	s := newServer(t, newAlloc(t), everyRoute, streaming(log))
	client := s.sdk(t, nodeToken)
	if list, _, err := client.Nodes().List(nil); err != nil || len(list) != 1 {
		t.Errorf("list = %v, %v", list, err)
	}
	if allocs, _, err := client.Nodes().Allocations(anyNode, nil); err != nil || len(allocs) != 0 {
		t.Errorf("allocations = %v, %v; want none", allocs, err)
	}
	if _, err := client.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{Meta: map[string]*string{"rack": new("r1")}},
		nil); err != nil {
		t.Errorf("apply: %v", err)
	}
	found, _, err := client.Search().PrefixSearch("", contexts.All, nil)
	if err != nil || len(found.Matches["nodes"]) != 1 || len(found.Matches["jobs"])+len(found.Matches["allocs"]) != 0 {
		t.Errorf("search = %+v, %v", found, err)
	}
	_, _, err = client.Jobs().List(nil)
	wantSDKError(t, err, 403, "Permission denied")
	for _, line := range streamed(t, s, nodeToken, "") { // which stops the server
		if !strings.Contains(line, "Node") || strings.Contains(line, "Allocation") {
			t.Errorf("streamed %q, want the node's events alone", line)
		}
	}
}

func TestSDKMetadata(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute)
	meta := s.sdk(t, operator).Nodes().Meta()
	set, err := meta.Apply(&api.NodeMetaApplyRequest{NodeID: anyNode,
		Meta: map[string]*string{"rack": new("r1"), "zone": new("z")}}, nil)
	if err != nil || set.Meta["rack"] != "r1" || *set.Dynamic["zone"] != "z" || set.Static == nil {
		t.Fatalf("apply = %+v, %v", set, err)
	}
	must.Get(meta.Apply(&api.NodeMetaApplyRequest{Meta: map[string]*string{"zone": nil}}, nil))(t)
	got, err := meta.Read("", nil)
	if diff := cmp.Diff(&api.NodeMetaResponse{
		Meta: map[string]string{"rack": "r1"}, Dynamic: map[string]*string{"rack": new("r1")}, Static: map[string]string{},
	}, got); err != nil || diff != "" {
		t.Errorf("read: %v\n%s", err, diff)
	}
	if node, _, err := s.sdk(t, operator).Nodes().Info(anyNode, nil); err != nil || node.Meta["rack"] != "r1" {
		t.Errorf("node = %+v, %v; want the metadata in it", node, err)
	}
	_, err = meta.Read(allocID, nil)
	wantSDKError(t, err, 404, "node not found")
	_, err = meta.Apply(&api.NodeMetaApplyRequest{NodeID: allocID, Meta: map[string]*string{"a": nil}}, nil)
	wantSDKError(t, err, 404, "node not found")
	_, err = meta.Apply(&api.NodeMetaApplyRequest{}, nil)
	wantSDKError(t, err, 400, "missing required Meta object")
	_, err = s.sdk(t, goodToken).Nodes().Meta().Read("", nil)
	wantSDKError(t, err, 403, "Permission denied")
}

func TestSDKNamespaces(t *testing.T) {
	client := newServer(t, newAlloc(t)).sdk(t, goodToken).Namespaces()
	if list, _, err := client.List(nil); err != nil || len(list) != 1 || list[0].Name != "default" {
		t.Errorf("list = %+v, %v", list, err)
	}
	if list, _, err := client.PrefixList("x", nil); err != nil || len(list) != 0 {
		t.Errorf("list with another prefix = %+v, %v", list, err)
	}
	if one, _, err := client.Info("default", nil); err != nil || one.Name != "default" ||
		one.Description != "Default shared namespace" {
		t.Errorf("info = %+v, %v", one, err)
	}
	_, _, err := client.Info("prod", nil)
	wantSDKError(t, err, 404, "Namespace not found")
}

// TestSDKNodePools: the machine is in Nomad's two pools, and the job in the one that it names.
func TestSDKNodePools(t *testing.T) {
	pools := newServer(t, newAlloc(t), everyRoute).sdk(t, operator).NodePools()
	for prefix, want := range map[string]int{"": 2, "def": 1, "x": 0} {
		if got, _, err := pools.PrefixList(prefix, nil); err != nil || len(got) != want {
			t.Errorf("list with prefix %q = %v, %v; want %d", prefix, got, err, want)
		}
	}
	for name, want := range map[string][2]int{"default": {1, 1}, "all": {1, 0}, "x": {0, 0}} {
		machines, _, err := pools.ListNodes(name, nil)
		must.OK(t, err)
		jobs, _, err := pools.ListJobs(name, nil)
		if got := [2]int{len(machines), len(jobs)}; err != nil || got != want {
			t.Errorf("pool %s has %d machines and jobs, %v; want %d", name, got, err, want)
		}
	}
}

// TestSDKTokens: the operator's token is the only one.
func TestSDKTokens(t *testing.T) {
	tokens := newServer(t, newAlloc(t)).sdk(t, operator).ACLTokens()
	self, _, err := tokens.Self(nil)
	if err != nil || self.Type != "management" || self.AccessorID != "jti-1" || self.SecretID != "" {
		t.Fatalf("self = %+v, %v", self, err)
	}
	if one, _, err := tokens.Info(self.AccessorID, nil); err != nil || !cmp.Equal(one, self) {
		t.Errorf("info = %+v, %v; want %+v", one, err, self)
	}
	if all, _, err := tokens.List(nil); err != nil || len(all) != 1 || all[0].AccessorID != self.AccessorID {
		t.Errorf("list = %v, %v", all, err)
	}
	_, _, err = tokens.Info(otherID, nil)
	wantSDKError(t, err, 404, "ACL token not found")
}

// nothingBut adds the contexts of a task's search in which nothing was found.
func nothingBut(found map[contexts.Context][]string) map[contexts.Context][]string {
	for _, c := range []contexts.Context{"allocs", "jobs", "evals", "namespaces", "deployment", "scaling_policy", "vars"} {
		if _, ok := found[c]; !ok {
			found[c] = nil
		}
	}
	return found
}

// TestSearch finds what the caller may see, by the beginning of IDs, and nothing else.
func TestSearch(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute, withVariables(newFakeVariables("nomad/jobs/other",
		"nomad/jobs/demo", "secret")))
	task, own := s.sdk(t, goodToken).Search(), s.sdk(t, operator).Search()
	for _, c := range []struct {
		search *api.Search
		prefix string
		in     contexts.Context
		want   map[contexts.Context][]string
	}{
		{task, "c0d1", contexts.Allocs, map[contexts.Context][]string{"allocs": {allocID}}},
		{task, "C0D1", contexts.Allocs, map[contexts.Context][]string{"allocs": {allocID}}},
		{task, "d", contexts.All, nothingBut(map[contexts.Context][]string{"jobs": {"demo"}, "namespaces": {"default"}})},
		{task, "DEMO", contexts.Jobs, map[contexts.Context][]string{"jobs": nil}},
		{task, anyEval[:6], "", nothingBut(map[contexts.Context][]string{"evals": {anyEval}})},
		{task, "nomad/", contexts.Variables, map[contexts.Context][]string{"vars": {"nomad/jobs/demo"}}},
		{own, "nomad/", contexts.Variables, map[contexts.Context][]string{"vars": {"nomad/jobs/demo", "nomad/jobs/other"}}},
		{own, "NOMAD/", contexts.Variables, map[contexts.Context][]string{"vars": nil}},
		{task, "1111", contexts.Nodes, map[contexts.Context][]string{}},
		{own, "1111", contexts.Nodes, map[contexts.Context][]string{"nodes": {anyNode}}},
		{task, "x", contexts.Volumes, map[contexts.Context][]string{}},
		{own, "x", contexts.Volumes, map[contexts.Context][]string{"volumes": nil}},
		{own, "def", contexts.NodePools, map[contexts.Context][]string{"node_pools": {"default"}}},
		{own, "(((.*", contexts.Allocs, map[contexts.Context][]string{"allocs": nil}},
	} {
		got, meta, err := c.search.PrefixSearch(c.prefix, c.in, nil)
		if err != nil || meta.LastIndex != 34 {
			t.Errorf("search of %q in %q: %+v, %v", c.prefix, c.in, meta, err)
			continue
		}
		if diff := cmp.Diff(c.want, got.Matches); diff != "" {
			t.Errorf("search of %q in %q: -want +got\n%s", c.prefix, c.in, diff)
		}
	}
	_, _, err := task.PrefixSearch("x", "moons", nil)
	if err == nil || !strings.Contains(err.Error(), `not \"moons\"`) && !strings.Contains(err.Error(), `not "moons"`) {
		t.Errorf("search in an unknown context = %v, want what there is", err)
	}
	if got, _, err := own.PrefixSearch("", contexts.Allocs, &api.QueryOptions{Namespace: "prod"}); err != nil ||
		len(got.Matches["allocs"]) != 0 {
		t.Errorf("search in another namespace = %+v, %v", got, err)
	}
}

// onlyVariables is variables, and notes the paths that a list has of them.
type onlyVariables struct {
	*fakeVariables
	listed *[]string
}

func (v onlyVariables) List(
	ctx context.Context, namespace, prefix string, concerns variables.Concerns,
) ([]*api.VariableMetadata, uint64, error) {
	list, index, err := v.fakeVariables.List(ctx, namespace, prefix, concerns)
	for _, one := range list {
		*v.listed = append(*v.listed, one.Path)
	}
	return list, index, err
}

// TestSearchReadsNoOthers: the store reads no variables but those that a search finds.
func TestSearchReadsNoOthers(t *testing.T) {
	var listed []string
	s := newServer(t, newAlloc(t), func(c *handlers.Config) {
		c.Variables = onlyVariables{newFakeVariables("nomad/jobs/demo", "a/Lamp", "b/lamps", "c"), &listed}
	})
	if _, _, err := s.sdk(t, operator).Search().FuzzySearch("LAMP", contexts.Variables, nil); err != nil {
		t.Error(err)
	}
	if slices.Sort(listed); !slices.Equal(listed, []string{"a/Lamp", "b/lamps"}) {
		t.Errorf("read %q", listed)
	}
}

// TestFuzzySearch finds names by a part of them, with where they are.
func TestFuzzySearch(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute)
	search := s.sdk(t, goodToken).Search()
	for text, want := range map[string]map[contexts.Context][]api.FuzzyMatch{
		"EMO": {
			"jobs":     {{ID: "demo", Scope: []string{"default", "demo"}}},
			"allocs":   {{ID: "demo.web[0]", Scope: []string{"default", allocID}}},
			"services": {{ID: "demo-web", Scope: []string{"default", "demo", "web"}}},
			"vars":     {{ID: "nomad/jobs/demo", Scope: []string{"default", "nomad/jobs/demo"}}},
		},
		"erv": {"tasks": {{ID: "server", Scope: []string{"default", "demo", "web"}}}},
		"zzz": {},
	} {
		got, _, err := search.FuzzySearch(text, contexts.All, nil)
		must.OK(t, err)
		for context, matches := range got.Matches {
			if len(matches) == 0 {
				delete(got.Matches, context)
			}
		}
		if diff := cmp.Diff(want, got.Matches); diff != "" {
			t.Errorf("search of %q: -want +got\n%s", text, diff)
		}
	}
	_, _, err := search.FuzzySearch("x", contexts.All, nil)
	wantSDKError(t, err, 400, "fuzzy search query must be at least 2 characters, got 1")
	if got := s.do(t, "POST", "/v1/search/fuzzy", goodToken, `{"Text":"`+strings.Repeat("a",
		1<<20)+`"}`); got.Status != 413 {
		t.Errorf("a text of 1 MB = %d, want 413", got.Status)
	}
}
