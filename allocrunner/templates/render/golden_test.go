package render_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul-template/config"
	dep "github.com/hashicorp/consul-template/dependency"
	"github.com/hashicorp/consul-template/template"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/templates/render"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

var testEnv = []string{"GREETING=hello", "EMPTY=", "COUNT=3", "NOMAD_TASK_NAME=web", "WITH_EQUALS=a=b=c"}

const testDestination = "secrets/cert.pem"

// testVariable is known to both sides, and so are the answers below.
var testVariable = api.Variable{
	Namespace: "default", Path: "nomad/jobs/web", CreateIndex: 7, ModifyIndex: 9, CreateTime: 1700000000000000000,
	ModifyTime: 1700000001000000000,
	Items: map[string]string{
		"user": "admin", "password": `p"w<>&`, "port": "8080", "json": `{"a":[1,2,{"b":null}]}`,
		"yaml": "a: [1, x]\nb: {c: 1.5}",
	},
}

var testServices = []render.NomadService{
	{ID: "1", Name: "db", Node: "n1", Address: "10.0.0.1", Port: 5432, Datacenter: "dc1", Tags: []string{"a", "b"},
		JobID: "pg", AllocID: "x"},
	{ID: "2", Name: "db", Node: "n1", Address: "10.0.0.2", Port: 5433, Datacenter: "dc1", Tags: []string{"b"}, JobID: "pg",
		AllocID: "y"},
}

// theirs renders with consul-template itself.
func theirs(t *testing.T, text string, missingKey bool) (output string, missing []string, err error) {
	t.Helper()
	brain := template.NewBrain()
	variable, _ := dep.NewNVGetQuery("default", "nomad/jobs/web")
	brain.Remember(variable, &dep.NewNomadVariable(&testVariable).Items)
	variable.EnableBlocking()
	brain.Remember(variable, &dep.NewNomadVariable(&testVariable).Items)
	absent, _ := dep.NewNVGetQuery("default", "nomad/jobs/absent")
	brain.Remember(absent, nil)
	for _, prefix := range []string{"nomad/jobs", "nothing"} {
		list, _ := dep.NewNVListQuery("default", prefix)
		metas := []*dep.NomadVarMeta{}
		if prefix == "nomad/jobs" {
			metas = append(metas, dep.NewNomadVarMeta(testVariable.Metadata()))
		}
		brain.Remember(list, metas)
	}
	var found []*dep.NomadService
	for _, s := range testServices {
		found = append(found, &dep.NomadService{ID: s.ID, Name: s.Name, Node: s.Node, Address: s.Address, Port: s.Port,
			Datacenter: s.Datacenter, Tags: dep.ServiceTags(s.Tags), JobID: s.JobID, AllocID: s.AllocID})
	}
	service, _ := dep.NewNomadServiceQuery("db")
	brain.Remember(service, found)
	tagged, _ := dep.NewNomadServiceQuery("a.db")
	brain.Remember(tagged, found[:1])
	chosen, _ := dep.NewNomadServiceChooseQuery(1, "key", "db")
	brain.Remember(chosen, found[1:])
	services, _ := dep.NewNomadServicesQuery("")
	brain.Remember(services, []*dep.NomadServicesSnippet{{Name: "db", Tags: dep.ServiceTags{"a", "b"}}})

	rememberRemote(t, brain)

	made, err := template.NewTemplate(&template.NewTemplateInput{Contents: text, ErrMissingKey: missingKey,
		Destination: testDestination, LeftDelim: "{{", RightDelim: "}}", FunctionDenylist: []string{"plugin", "writeToFile"}})
	if err != nil {
		return "", nil, err
	}
	settings := config.DefaultConfig()
	settings.Finalize()
	result, err := made.Execute(&template.ExecuteInput{Brain: brain, Env: testEnv, Config: settings})
	if err != nil {
		return "", nil, err
	}
	for _, d := range result.Missing.List() {
		missing = append(missing, d.String())
	}
	slices.Sort(missing)
	return string(result.Output), missing, nil
}

// known returns the same answers for this package.
func known() []render.Known {
	v := &render.NomadVariable{NomadVarMeta: *render.NewMeta(testVariable.Metadata()), Items: testVariable.Items}
	var found []*render.NomadService
	for i := range testServices {
		found = append(found, &testServices[i])
	}
	variable := func(path string) render.Query {
		return render.Query{Kind: render.Variable, Name: path, Namespace: "default"}
	}
	list := func(prefix string) render.Query {
		return render.Query{Kind: render.Variables, Name: prefix, Namespace: "default"}
	}
	return append(remoteKnown(), []render.Known{
		{variable("nomad/jobs/web"), render.Answer{Variable: v}},
		{variable("nomad/jobs/absent"), render.Answer{}},
		{list("nomad/jobs"), render.Answer{List: []*render.NomadVarMeta{&v.NomadVarMeta}}},
		{list("nothing"), render.Answer{}},
		{render.Query{Kind: render.Service, Name: "db"}, render.Answer{Service: found}},
		{render.Query{Kind: render.Service, Name: "db", Tag: "a"}, render.Answer{Service: found[:1]}},
		{render.Query{Kind: render.Service, Name: "db", Choose: "1|key"}, render.Answer{Service: found[1:]}},
		{render.Query{Kind: render.Services}, render.Answer{Services: []*render.NomadServicesSnippet{
			{Name: "db", Tags: []string{"a", "b"}}}}},
	}...)
}

func ours(text string, missingKey bool) render.Result {
	return render.Render(render.Request{
		Templates: []render.Template{{Text: text, Left: "{{", Right: "}}", MissingKey: missingKey,
			Destination: testDestination}},
		Env: testEnv, Namespace: "default", Known: known(),
	}).Results[0]
}

// corpus returns templates whose output, missing values and failure must be consul-template's.
func corpus(t *testing.T) []string {
	t.Helper()
	text := must.Read(t, "testdata/templates.txt")
	lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, "#")
	})
	if len(lines) < 100 {
		t.Fatalf("there are only %d", len(lines))
	}
	return lines
}

// TestAsConsulTemplate compares with the library that Nomad uses.
func TestAsConsulTemplate(t *testing.T) {
	for _, missingKey := range []bool{false, true} {
		for _, text := range corpus(t) {
			output, missing, err := theirs(t, text, missingKey)
			got := ours(text, missingKey)
			if (err != nil) != (got.Error != "") {
				t.Errorf("%s\n  ours fails with %q, theirs with %v", text, got.Error, err)
				continue
			}
			if err != nil {
				continue
			}
			var lacking []string
			for _, q := range got.Missing {
				lacking = append(lacking, q.String())
			}
			slices.Sort(lacking)
			same.As(t, missing, lacking, text, " misses")
			if string(got.Output) != output {
				t.Errorf("%s\n  ours   %q\n  theirs %q", text, got.Output, output)
			}
		}
	}
}

// TestEveryFunctionOfTheirs: each function of consul-template is there, or is refused by name and with a reason.
func TestEveryFunctionOfTheirs(t *testing.T) {
	names := theirFunctions(t)
	for _, name := range names {
		got := ours(fmt.Sprintf("{{ %s }}", name), false)
		_, isRefused := render.Refused()[name]
		switch {
		case strings.Contains(got.Error, "not defined"):
			t.Errorf("%s: %s", name, got.Error)
		case isRefused && !strings.Contains(got.Error, render.Refused()[name]):
			t.Errorf("%s is refused with %q", name, got.Error)
		}
	}
	for name := range render.Refused() {
		if !slices.Contains(names, name) {
			t.Errorf("%s is refused, and consul-template does not have it", name)
		}
	}
}
