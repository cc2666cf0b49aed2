package jobdiff_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/internal/must"
)

// TestEveryFieldHasARow: an update of the SDK fails here until each new field is decided on.
func TestEveryFieldHasARow(t *testing.T) {
	tables := jobdiff.FieldTables()
	for of, table := range tables {
		rows := 0
		for field := range of.Fields() {
			if !field.IsExported() {
				continue
			}
			row, ok := table[field.Name]
			if !ok {
				t.Errorf("%s.%s is in no table: can a running allocation take a change of it over?", of, field.Name)
				continue
			}
			rows++
			if row.Ignored && row.Why == "" {
				t.Errorf("%s.%s is ignored without a reason", of, field.Name)
			}
			if elem := elementOf(field.Type); row.ByTable && tables[elem] == nil {
				t.Errorf("%s.%s is to be compared by the table of %s, which there is not", of, field.Name, elem)
			}
		}
		if rows != len(table) {
			t.Errorf("the table of %s has %d rows for %d fields", of, len(table), rows)
		}
	}
	if len(tables[reflect.TypeFor[api.Task]()]) < 25 {
		t.Error("the tables are not there: the walk is broken")
	}
}

func elementOf(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t
}

// TestUnknownFieldsAreDestructive: until somebody has decided, a difference can't be made in place.
func TestUnknownFieldsAreDestructive(t *testing.T) {
	defer jobdiff.WithoutRow(reflect.TypeFor[api.Task](), "KillTimeout")()
	got := changed(t, `"5s"`, `"10s"`)
	want := `destructive group "g" > task "t" > kill_timeout: changes from 5s to 10s; unknown field; needs new ` +
		`processes of all tasks`
	if !slices.Equal(got, []string{want}) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// goldenJobs are jobs that together use every block and argument.
func goldenJobs(tb testing.TB) map[string][]byte {
	tb.Helper()
	files, err := filepath.Glob("../testdata/*.golden.json")
	if err != nil || len(files) == 0 {
		tb.Fatalf("golden files: %v, %v", files, err)
	}
	jobs := map[string][]byte{}
	for _, file := range files {
		if jobs[file], err = os.ReadFile(file); err != nil {
			tb.Fatal(err)
		}
	}
	return jobs
}

func unmarshalJob(tb testing.TB, body []byte) *api.Job {
	tb.Helper()
	job := new(api.Job)
	must.OK(tb, json.Unmarshal(body, job))
	return job
}

// leaf is a value in a job that can be made another one.
type leaf struct {
	path  string // Job.TaskGroups[0].Tasks[0].KillTimeout
	field string // Task.KillTimeout; of an element of a list or map, the list's
	value reflect.Value
}

// leaves returns all values of a job, in an order that depends on nothing but the job. Lists and maps are leaves
// besides their elements.
func leaves(v reflect.Value, path, field string) []leaf {
	var all []leaf
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || v.Elem().Kind() != reflect.Struct {
			return []leaf{{path, field, v}}
		}
		return leaves(v.Elem(), path, field)
	case reflect.Struct:
		for f, value := range v.Fields() {
			if f.IsExported() && f.Tag.Get("json") != "-" {
				all = append(all, leaves(value, path+"."+f.Name, v.Type().Name()+"."+f.Name)...)
			}
		}
		return all
	case reflect.Slice:
		for i := range v.Len() {
			all = append(all, leaves(v.Index(i), fmt.Sprintf("%s[%d]", path, i), field)...)
		}
	case reflect.Map:
		if v.Type().Elem().Kind() == reflect.Pointer {
			for _, key := range v.MapKeys() { // all golden maps of blocks have one element
				all = append(all, leaves(v.MapIndex(key), path+"."+key.String(), field)...)
			}
		}
	}
	return append(all, leaf{path, field, v})
}

const secret = "hunter2"

// mutate makes a value another one.
func mutate(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
			return
		}
		fresh := reflect.New(v.Type().Elem())
		fresh.Elem().Set(v.Elem())
		mutate(fresh.Elem())
		v.Set(fresh)
	case reflect.String:
		v.SetString(v.String() + secret)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Slice:
		fresh := reflect.New(v.Type().Elem()).Elem()
		if fresh.Kind() == reflect.Pointer {
			fresh.Set(reflect.New(fresh.Type().Elem()))
		}
		if fresh.Kind() == reflect.String {
			fresh.SetString(secret)
		}
		v.Set(reflect.Append(v.Slice3(0, v.Len(), v.Len()), fresh))
	case reflect.Map:
		fresh := reflect.MakeMap(v.Type())
		for _, key := range v.MapKeys() {
			fresh.SetMapIndex(key, v.MapIndex(key))
		}
		value := reflect.New(v.Type().Elem()).Elem()
		switch value.Kind() {
		case reflect.Pointer:
			value.Set(reflect.New(value.Type().Elem()))
		case reflect.String:
			value.SetString(secret)
		case reflect.Interface:
			value.Set(reflect.ValueOf(secret))
		}
		fresh.SetMapIndex(reflect.ValueOf("added"), value)
		v.Set(fresh)
	default:
		if v.CanInt() {
			v.SetInt(v.Int() + 1)
		} else {
			v.SetUint(v.Uint() + 1)
		}
	}
}

// mayTell are the fields whose texts are shown: names, modes, places. All others may hold a secret.
var mayTell = []string{
	"Job.Region", "Job.Namespace", "Job.ID", "Job.Name", "Job.Type", "Job.ParentID", "Job.Datacenters", "Job.NodePool",
	"Constraint.", "Affinity.", "Spread.", "SpreadTarget.", "UpdateStrategy.", "ReschedulePolicy.", "MigrateStrategy.",
	"RestartPolicy.",
	"DisconnectStrategy.", "NetworkResource.", "Port.", "DNSConfig.", "VolumeRequest.", "VolumeMount.", "CSIMountOptions.",
	"Consul.",
	"TaskGroup.Name", "Task.Name", "Task.Driver", "Task.User", "Task.Kind", "Task.KillSignal", "TaskLifecycle.",
	"TaskCSIPluginConfig.",
	"TaskSchedule", "WorkloadIdentity.", "NUMAResource.", "RequestedDevice.",
	"Service.Name", "Service.Provider", "Service.PortLabel", "Service.AddressMode", "Service.Address", "Service.TaskName",
	"Service.OnUpdate", "Service.Cluster", "Service.Kind",
	"ServiceCheck.Name", "ServiceCheck.Type", "ServiceCheck.PortLabel", "ServiceCheck.AddressMode",
	"ServiceCheck.Advertise",
	"ServiceCheck.Protocol", "ServiceCheck.Method", "ServiceCheck.Command", "ServiceCheck.TaskName",
	"ServiceCheck.TLSServerName",
	"ServiceCheck.InitialStatus", "ServiceCheck.OnUpdate", "ServiceCheck.GRPCService",
	// Names of blocks whose other texts are not shown.
	"Template.Name", "Secret.Name", "Action.Name", "SidecarTask.Name", "ConsulGatewayBindAddress.Name", "JobUILink.Label",
	"MultiregionRegion.Name",
}

// ofDefaultIdentity matches what each default identity has alike.
var ofDefaultIdentity = regexp.MustCompile(`Tasks\[\d+\]\.Identity\.(Name|Audience)`)

// TestEveryMutationIsAChange: whatever single value of a job is made another one, that is seen, and its text is not
// shown unless it is of a kind that may be.
func TestEveryMutationIsAChange(t *testing.T) {
	tables := jobdiff.FieldTables()
	tried := 0
	for file, body := range goldenJobs(t) {
		old := unmarshalJob(t, body)
		group := *old.TaskGroups[0].Name
		if got := jobdiff.Changes(old, unmarshalJob(t, body), group); got != nil {
			t.Errorf("%s: a job differs from itself: %v", file, got)
		}
		job := unmarshalJob(t, body)
		for _, target := range leaves(reflect.ValueOf(job), "Job", "") {
			kept := reflect.New(target.value.Type()).Elem()
			kept.Set(target.value)
			mutate(target.value)
			got := jobdiff.Changes(old, job, group)
			target.value.Set(kept)
			tried++
			of, name, _ := strings.Cut(target.field, ".")
			row := tables[reflect.TypeFor[api.Job]()][name]
			if ofDefaultIdentity.MatchString(target.path) || of == "Job" && row.Ignored && name != "TaskGroups" {
				if got != nil {
					t.Errorf("%s: %s is ignored, and shown: %v", file, target.path, got)
				}
				continue
			}
			if len(got) == 0 {
				t.Errorf("%s: %s was made another value, and no change is seen", file, target.path)
			}
			shown := strings.Contains(fmt.Sprint(got), secret)
			if shown && !slices.ContainsFunc(mayTell,
				func(field string) bool { return strings.HasPrefix(target.field, field) }) {
				t.Errorf("%s: the text of %s is shown: %v", file, target.path, got)
			}
		}
	}
	if tried < 1000 {
		t.Errorf("only %d values tried: the walk is broken", tried)
	}
}

// TestChangesAreSymmetric: the way back of a change in place is in place, and that of a destructive one is destructive;
// a job that went through JSON is the same.
func TestChangesAreSymmetric(t *testing.T) {
	bodies := goldenJobs(t)
	var files []string
	for file := range bodies {
		files = append(files, file)
	}
	slices.Sort(files)
	rapid.Check(t, func(rt *rapid.T) {
		body := bodies[rapid.SampledFrom(files).Draw(rt, "file")]
		old, job := unmarshalJob(t, body), unmarshalJob(t, body)
		for range rapid.IntRange(0, 4).Draw(rt, "mutations") {
			all := leaves(reflect.ValueOf(job), "Job", "")
			mutate(all[rapid.IntRange(0, len(all)-1).Draw(rt, "leaf")].value)
		}
		group := *old.TaskGroups[0].Name
		there, back := jobdiff.Changes(old, job, group), jobdiff.Changes(job, old, group)
		if len(there) != len(back) || len(jobdiff.Destructive(there)) != len(jobdiff.Destructive(back)) {
			rt.Errorf("there %v, back %v", there, back)
		}
		if got := jobdiff.Changes(job, unmarshalJob(t, encode(t, job)), group); got != nil {
			rt.Errorf("a job differs from itself after JSON: %v", got)
		}
	})
}

func encode(tb testing.TB, job *api.Job) []byte {
	tb.Helper()
	body := must.Get(json.Marshal(job))(tb)
	return body
}
