package render_test

import (
	"encoding/json"
	"strings"
	"testing"

	dep "github.com/hashicorp/consul-template/dependency"
	"github.com/hashicorp/consul-template/template"
	capi "github.com/hashicorp/consul/api"

	"taskapi/allocrunner/templates/render"
	"taskapi/internal/must"
)

// What Consul and Vault have, for both sides.
var (
	testPairs = []*render.KeyPair{
		{Path: "app/", Key: ""},
		{Path: "app/name", Key: "name", Value: "shop", ModifyIndex: 5},
		{Path: "app/db/host", Key: "db/host", Value: "h"},
		{Path: "app/db/", Key: "db/"},
		{Path: "app/web/port", Key: "web/port", Value: "80"},
	}
	testHealth = []*render.ConsulService{
		{Node: "n1", NodeID: "id", NodeAddress: "10.0.0.1", Address: "10.0.0.9", ID: "web1", Name: "web",
			Tags: []string{"a", "b"}, Status: "passing", Port: 80, ServiceMeta: map[string]string{"v": "2", "c": "x y"},
			Checks: capi.HealthChecks{{CheckID: "c1", Status: "passing"}}, Weights: capi.AgentWeights{Passing: 1}},
		{Node: "n2", Address: "10.0.0.8", ID: "web2", Name: "web", Tags: []string{"b"}, Status: "passing", Port: 81},
	}
	testCatalog = []*render.CatalogSnippet{{Name: "consul"}, {Name: "web", Tags: []string{"a", "b"}}}
	testPEMs    = &render.PEMs{Cert: "the-cert", Key: "the-private-key", CA: "ca1", CAChain: []string{"ca1", "ca2"}}
	testSecret  = `{"password":"s3cret-word","port":5432,"big":12345678901234567890,"nested":{"a":[1,"x"]}}`
)

// convert makes theirs of ours, whose fields have the same names.
func convert[T any](t *testing.T, ours any) (theirs T) {
	t.Helper()
	encoded, err := json.Marshal(ours)
	if err == nil {
		decoder := json.NewDecoder(strings.NewReader(string(encoded)))
		decoder.UseNumber()
		err = decoder.Decode(&theirs)
	}
	must.OK(t, err)
	return theirs
}

func rememberRemote(t *testing.T, brain *template.Brain) {
	t.Helper()
	for key, value := range map[string]any{"app/name": "shop", "empty": "", "none": nil, "app/name@dc2": "other"} {
		query := must.Get(dep.NewKVGetQuery(key))(t)
		brain.Remember(query, value)
		if value != nil {
			query.EnableBlocking()
			brain.Remember(query, value)
		}
	}
	pairs, _ := dep.NewKVListQuery("app")
	brain.Remember(pairs, convert[[]*dep.KeyPair](t, testPairs))
	nothing, _ := dep.NewKVListQuery("nothing")
	brain.Remember(nothing, []*dep.KeyPair{})
	health := convert[[]*dep.HealthService](t, testHealth)
	for words, list := range map[string][]*dep.HealthService{
		"web": health, "web|any": health, "b.web@dc2": health[1:], "web|critical,warning": {},
	} {
		query := must.Get(dep.NewHealthServiceQuery(words))(t)
		brain.Remember(query, list)
	}
	catalog, _ := dep.NewCatalogServicesQuery("")
	brain.Remember(catalog, convert[[]*dep.CatalogSnippet](t, testCatalog))
	secret := &dep.Secret{LeaseID: "l", LeaseDuration: 60, Renewable: true,
		Data: convert[map[string]any](t, json.RawMessage(testSecret))}
	read, _ := dep.NewVaultReadQuery("secret/db")
	brain.Remember(read, secret)
	versioned, _ := dep.NewVaultReadQuery("secret/db?version=2")
	brain.Remember(versioned, secret)
	written, _ := dep.NewVaultWriteQuery("pki/issue/web", map[string]any{"common_name": "a.b", "ttl": "1h"})
	brain.Remember(written, secret)
	pems, _ := dep.NewVaultPKIQuery("pki/issue/web", testDestination, nil)
	brain.Remember(pems, convert[dep.PemEncoded](t, testPEMs))
	names, _ := dep.NewVaultListQuery("secret/")
	brain.Remember(names, []string{"a", "db/"})
}

func remoteKnown() []render.Known {
	key := func(name, dc string) render.Query { return render.Query{Kind: render.Key, Name: name, Region: dc} }
	health := func(tag, dc, filter string) render.Query {
		return render.Query{Kind: render.HealthService, Name: "web", Tag: tag, Region: dc, Filter: filter}
	}
	secret := &render.VaultSecret{LeaseID: "l", LeaseDuration: 60, Renewable: true}
	_ = json.Unmarshal([]byte(testSecret), &secret.Data)
	return []render.Known{
		{key("app/name", ""), render.Answer{Value: new("shop")}},
		{key("app/name", "dc2"), render.Answer{Value: new("other")}},
		{key("empty", ""), render.Answer{Value: new("")}},
		{key("none", ""), render.Answer{}},
		{render.Query{Kind: render.Keys, Name: "app"}, render.Answer{Pairs: testPairs}},
		{render.Query{Kind: render.Keys, Name: "nothing"}, render.Answer{}},
		{health("", "", "passing"), render.Answer{Health: testHealth}},
		{health("", "", "any"), render.Answer{Health: testHealth}},
		{health("b", "dc2", "passing"), render.Answer{Health: testHealth[1:]}},
		{health("", "", "critical,warning"), render.Answer{}},
		{render.Query{Kind: render.CatalogServices}, render.Answer{Catalog: testCatalog}},
		{render.Query{Kind: render.Secret, Name: "secret/db"}, render.Answer{Secret: secret}},
		{render.Query{Kind: render.Secret, Name: "secret/db?version=2"}, render.Answer{Secret: secret}},
		{render.Query{Kind: render.Written, Name: "pki/issue/web", Data: `{"common_name":"a.b","ttl":"1h"}`},
			render.Answer{Secret: secret}},
		{render.Query{Kind: render.Certificate, Name: "pki/issue/web", Data: `{"common_name":"a.b"}`,
			Destination: testDestination}, render.Answer{PEMs: testPEMs}},
		{render.Query{Kind: render.Secrets, Name: "secret"}, render.Answer{Names: []string{"a", "db/"}}},
	}
}
