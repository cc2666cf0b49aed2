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
)

var testEnv = []string{"GREETING=hello", "EMPTY=", "COUNT=3", "NOMAD_TASK_NAME=web", "WITH_EQUALS=a=b=c"}

// testVariable is known to both sides, and so are the answers below.
var testVariable = api.Variable{
	Namespace: "default", Path: "nomad/jobs/web", CreateIndex: 7, ModifyIndex: 9, CreateTime: 1700000000000000000,
	ModifyTime: 1700000001000000000,
	Items: map[string]string{
		"user": "admin", "password": `p"w<>&`, "port": "8080", "json": `{"a":[1,2,{"b":null}]}`, "yaml": "a: [1, x]\nb: {c: 1.5}",
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

	made, err := template.NewTemplate(&template.NewTemplateInput{Contents: text, ErrMissingKey: missingKey,
		LeftDelim: "{{", RightDelim: "}}", FunctionDenylist: []string{"plugin", "writeToFile"}})
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
	return []render.Known{
		{variable("nomad/jobs/web"), render.Answer{Variable: v}},
		{variable("nomad/jobs/absent"), render.Answer{}},
		{list("nomad/jobs"), render.Answer{List: []*render.NomadVarMeta{&v.NomadVarMeta}}},
		{list("nothing"), render.Answer{}},
		{render.Query{Kind: render.Service, Name: "db"}, render.Answer{Service: found}},
		{render.Query{Kind: render.Service, Name: "db", Tag: "a"}, render.Answer{Service: found[:1]}},
		{render.Query{Kind: render.Service, Name: "db", Choose: "1|key"}, render.Answer{Service: found[1:]}},
		{render.Query{Kind: render.Services}, render.Answer{Services: []*render.NomadServicesSnippet{
			{Name: "db", Tags: []string{"a", "b"}}}}},
	}
}

func ours(text string, missingKey bool) render.Result {
	return render.Render(render.Request{
		Templates: []render.Template{{Text: text, Left: "{{", Right: "}}", MissingKey: missingKey}},
		Env:       testEnv, Namespace: "default", Known: known(),
	}).Results[0]
}

// corpus are templates whose output, missing values and failure must be consul-template's.
var corpus = []string{
	// the environment
	`{{ env "GREETING" }} {{ env "NONE_SUCH" }} {{ env "WITH_EQUALS" }}`, `{{ mustEnv "GREETING" }}`, `{{ mustEnv "EMPTY" }}`,
	`{{ envOrDefault "EMPTY" "d" }}|{{ envOrDefault "NONE_SUCH" "d" }}`,
	// variables
	`{{ with nomadVar "nomad/jobs/web" }}{{ .user }} {{ .password }} {{ .port.Value }} {{ .port.Key }}{{ end }}`,
	`{{ with nomadVar "/nomad/jobs/web/" }}{{ range $k, $v := . }}{{ $k }}={{ $v }};{{ end }}{{ end }}`,
	`{{ with nomadVar "nomad/jobs/web@default" }}{{ .Keys }} {{ .Values }} {{ range .Tuples }}{{ .K }}:{{ .V }},{{ end }}{{ end }}`,
	`{{ with nomadVar "nomad/jobs/web" }}{{ .Metadata.Path }} {{ .Parent.ModifyIndex }} {{ .user.Parent.Path }} {{ .user.Metadata }}{{ end }}`,
	`{{ with nomadVar "nomad/jobs/web" }}{{ .Parent.CreateTime.Time.UTC }} {{ .Parent.Metadata.ModifyIndex }}{{ end }}`,
	`{{ with nomadVar "nomad/jobs/web" }}{{ .ItemsMap | toJSON }} {{ . | toJSON }} {{ toYAML .ItemsMap }}{{ end }}`,
	`{{ with nomadVar "nomad/jobs/web" }}{{ .none }}{{ end }}`, `{{ nomadVar "nomad/jobs/web@@" }}`, `{{ nomadVar "" }}`,
	`{{ with nomadVar "nomad/jobs/absent" }}{{ .user }}{{ end }}`, `{{ with nomadVar "other@ns.region" }}x{{ end }}`,
	`{{ nomadVarExists "nomad/jobs/web" }} {{ nomadVarExists "nomad/jobs/absent" }} {{ nomadVarExists "" }}`,
	`{{ (nomadVar "nomad/jobs/absent").x }}`,
	`{{ range nomadVarList "nomad/jobs" }}{{ .Path }} {{ . }} {{ .ModifyIndex }} {{ end }}`, `{{ nomadVarList "a" "b" }}`,
	`{{ range nomadVarList "nothing" }}x{{ end }}`, `{{ range nomadVarListSafe "nothing" }}x{{ end }}`,
	`{{ range nomadVarListSafe "nomad/jobs" }}{{ .Path }}{{ end }}`, `{{ range nomadVarList "unasked" }}x{{ end }}`,
	`{{ with nomadVar "nomad/jobs/web" }}{{ with .json.Value | parseJSON }}{{ index .a 0 }} {{ . | toJSONPretty }}{{ end }}{{ end }}`,
	`{{ with nomadVar "nomad/jobs/web" }}{{ with .yaml.Value | parseYAML }}{{ toYAML . }}|{{ .b.c }}{{ end }}{{ end }}`,
	// services
	`{{ range nomadService "db" }}{{ .Name }} {{ .Address }}:{{ .Port }} {{ .Tags }} {{ .ID }} {{ .Node }} {{ .Datacenter }} {{ .JobID }} {{ .AllocID }};{{ end }}`,
	`{{ range nomadService "a.db" }}{{ .Address }}{{ end }}`, `{{ range nomadService 1 "key" "db" }}{{ .Address }}{{ end }}`,
	`{{ range nomadService "none" }}x{{ end }}`, `{{ nomadService 1 2 "db" }}`, `{{ nomadService }}`, `{{ nomadService "a b" }}`,
	`{{ range nomadServices }}{{ .Name }} {{ .Tags | join "," }}{{ end }}`, `{{ range nomadServices "@elsewhere" }}x{{ end }}`,
	`{{ range $tag, $services := nomadService "db" | byTag }}{{ $tag }}{{ range $services }} {{ .Address }}{{ end }};{{ end }}`,
	`{{ range $port, $services := nomadService "db" | byPort }}{{ $port }}{{ len $services }};{{ end }}`, `{{ byTag "x" }}`,
	`{{ if contains "a" (index (nomadService "db") 0).Tags }}{{ end }}x`, `{{ range nomadService "db" }}{{ if .Tags | contains "b" }}y{{ end }}{{ end }}`,
	`{{ range nomadService "db" }}{{ if .Tags | containsAll (parseJSON "[\"a\",\"b\"]") }}y{{ else }}n{{ end }}{{ end }}`,
	// helpers
	`{{ base64Encode "hi?>" }} {{ base64Decode "aGk=" }} {{ base64URLEncode "hi?>" }} {{ base64URLDecode "aGk_Pg==" }}`,
	`{{ base64Decode "*" }}`, `{{ "a,b,c" | split "," | join "-" }}`, `{{ split "," " " | len }}`,
	`{{ splitToMap "," "=" "a=1,b=2,c" | toJSON }}`, `{{ in "abc" "b" }} {{ in (parseJSON "[1.5,\"x\"]") 1.5 }} {{ in (parseJSON "[\"x\"]") "x" }} {{ in 3 3 }}`,
	`{{ containsAny (parseJSON "[\"x\"]") (parseJSON "[\"x\",\"y\"]") }} {{ containsNone (parseJSON "[\"x\"]") (parseJSON "[\"y\"]") }} {{ containsNotAll (parseJSON "[\"x\"]") (parseJSON "[\"y\"]") }}`,
	`{{ explodeMap (parseJSON "{\"a/b\":1,\"a/c/d\":2,\"e\":3,\"f/\":4}") | toJSON }}`, `{{ explodeMap (parseJSON "{\"a\":1,\"a/b\":2}") }}`,
	`{{ mergeMap (parseJSON "{\"a\":1}") (parseJSON "{\"a\":2,\"b\":3}") | toJSON }}`,
	`{{ mergeMapWithOverride (parseJSON "{\"a\":1}") (parseJSON "{\"a\":2,\"b\":3}") | toJSON }}`,
	"{{ indent 4 \"a\\n\\nb\\n\" }}|", `{{ indent -1 "a" }}`, `{{ range loop 3 }}{{ . }},{{ end }}`, `{{ range $i := loop 5 8 }}{{ $i }}{{ end }}`,
	`{{ range $i, $e := loop "2" "4" }}{{ $i }}{{ $e }}{{ end }}`, `{{ loop }}`, `{{ loop 1.5 }}`, `{{ loop "x" }}`,
	`{{ "abc" | replaceAll "b" "x" }} {{ "a1b22" | regexReplaceAll "[0-9]+" "#" }} {{ "a1" | regexMatch "^[a-z]1$" }}`, `{{ regexMatch "(" "a" }}`,
	`{{ toLower "AbC" }} {{ toUpper "AbC" }} {{ toTitle "hello wORLD it's a-b c_d 1st é" }}`,
	`{{ trim "-" "--a--" }} {{ trimPrefix "a" "ab" }} {{ trimSuffix "b" "ab" }} [{{ trimSpace " x " }}]`,
	`{{ parseBool "true" }} {{ parseBool "" }} {{ parseInt "12" }} {{ parseUint "12" }} {{ parseFloat "1.5" }} {{ parseInt "" }}`, `{{ parseInt "x" }}`,
	`{{ parseBool "maybe" }}`, `{{ parseJSON "{" }}`, `{{ parseYAML "a: b: c" }}`, `{{ parseJSON "" | toJSON }}`,
	`{{ parseJSON "{\"a\":\"<&>\",\"b\":[1,2.5,true,null]}" | toJSON }}`, `{{ parseJSON "{\"a\":\"<&>\"}" | toUnescapedJSON }}`,
	`{{ parseJSON "{\"a\":{\"b\":[1,2]}}" | toUnescapedJSONPretty }}`, `{{ parseJSON "{\"a\":{\"b\":[1,2]},\"c\":\"x\"}" | toTOML }}`,
	`{{ parseJSON "{\"a\":{\"b\":[1,2]},\"c\":\"x\"}" | toYAML }}`, `{{ toTOML 3 }}`, `{{ sha256Hex "a" }} {{ md5sum "a" }} {{ hmacSHA256Hex "a" "key" }}`,
	`{{ timestamp "2006" | len }} {{ timestamp "a" "b" }}`, `{{ timestamp | len }} {{ timestamp "unix" | len }}`,
	`{{ add 1 2 }} {{ subtract 1 3 }} {{ multiply 2 3 }} {{ divide 2 7 }} {{ modulo 4 7 }} {{ add 1.5 2 }} {{ divide 2 7.0 }}`,
	`{{ minimum 1 2 }} {{ maximum 1 2 }} {{ minimum 1.5 1 }} {{ maximum 1.5 1 }} {{ maximum 2 2.0 }} {{ "3" | parseUint | maximum 4 }} {{ "3" | parseUint | add 4 }} {{ subtract ("3" | parseUint) 5 }}`,
	`{{ add "1" 2 }}`, `{{ modulo 1.5 2 }}`, `{{ divide 0 1 }}`, `{{ add nil 1 }}`, `{{ env "COUNT" | parseInt | multiply 2 }}`,
	// the scratch, other templates, what Go's templates have
	`{{ scratch.Set "a" 1 }}{{ scratch.SetX "a" 2 }}{{ scratch.Get "a" }} {{ scratch.Key "a" }} {{ scratch.Key "b" }} {{ scratch.Get "b" }}`,
	`{{ scratch.MapSet "m" "b" 1 }}{{ scratch.MapSet "m" "a" 2 }}{{ scratch.MapSetX "m" "a" 3 }}{{ scratch.MapValues "m" }} {{ scratch.MapValues "x" }}`,
	`{{ scratch.Set "a" 1 }}{{ scratch.MapSet "a" "b" 2 }}`,
	`{{ define "t" }}<{{ . }}>{{ end }}{{ executeTemplate "t" 3 }}{{ executeTemplate "t" }}{{ template "t" 4 }}`, `{{ executeTemplate "none" }}`,
	`{{- /* a comment */ -}}  x {{- "y" -}}  `, `{{ printf "%q %v" "a" 3 }} {{ len "abc" }} {{ eq 1 1 }} {{ slice "abcd" 1 2 }} {{ urlquery "a b" }}`,
	`{{ range $i, $x := parseJSON "[1,2,3]" }}{{ if eq $i 1 }}{{ continue }}{{ end }}{{ $x }}{{ else }}none{{ end }}`,
	// what can't be read
	`{{ unknown "x" }}`, `{{ if }}`, `{{ "unclosed`, `{{ plugin "id" }}`, "{{ \"\" | writeToFile \"/x\" \"\" \"\" \"0644\" }}", "", "no action\n", `{{ end }}`,
	// sprig
	`{{ sprig_upper "abc" }} {{ sprig_default "x" "" }} {{ sprig_list 1 2 3 | sprig_join "," }} {{ sprig_dict "a" 1 | toJSON }} {{ sprig_trunc 2 "abcd" }}`,
	`{{ sprig_b64enc "a" }} {{ sprig_sha256sum "a" }} {{ sprig_sha512sum "a" }} {{ sprig_nospace " a b " }} {{ sprig_quote "a" }} {{ sprig_ternary 1 2 true }} {{ sprig_repeat 3 "a" }}`,
	`{{ sprig_merge (sprig_dict "a" 1) (sprig_dict "a" 2 "b" 3) | toJSON }} {{ sprig_mergeOverwrite (sprig_dict "a" 1) (sprig_dict "a" 2) | toJSON }}`,
	`{{ sprig_fail "no" }}`, `{{ range sprig_untilStep 0 6 2 }}{{ . }}{{ end }} {{ sprig_max 1 3 2 }} {{ sprig_first (sprig_list 1 2) }} {{ sprig_keys (sprig_dict "k" 1) }}`,
	`{{ sprig_splitList "," "a,b" }} {{ sprig_has 1 (sprig_list 1 2) }} {{ sprig_toString 3 }} {{ sprig_atoi "4" }} {{ sprig_int64 "5" }} {{ sprig_coalesce "" "z" }} {{ sprig_title "ab cd" }}`,
}

// TestAsConsulTemplate compares with the library that Nomad uses.
func TestAsConsulTemplate(t *testing.T) {
	for _, missingKey := range []bool{false, true} {
		for _, text := range corpus {
			output, missing, err := theirs(t, text, missingKey)
			if text == "" {
				continue // consul-template takes no empty template, as Nomad doesn't
			}
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
			if !slices.Equal(lacking, missing) {
				t.Errorf("%s\n  misses %v, theirs %v", text, lacking, missing)
			}
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
