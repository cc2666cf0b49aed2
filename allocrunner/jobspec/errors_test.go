package jobspec_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func parse(tb testing.TB, body string) (*api.Job, error) {
	tb.Helper()
	return jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(body), Dir: tb.TempDir()})
}

// parseFile parses the job file at a path, "-" for stdin.
func parseFile(path string, stdin io.Reader, cfg jobspec.Config) (*api.Job, error) {
	cfg, err := jobspec.ReadFile(path, stdin, cfg)
	if err != nil {
		return nil, err
	}
	return jobspec.Parse(cfg)
}

// inTask puts lines into a task of a job; the first of them is line 4.
func inTask(lines string) string {
	return "job \"j\" {\ngroup \"g\" {\ntask \"t\" {\n" + lines + "\n}\n}\n}\n"
}

func TestErrorsHavePlaces(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"unknown argument": {inTask("drivr = \"raw_exec\""),
			`job.hcl:4:1: Unsupported argument: An argument named "drivr" is not expected here. Did you mean "driver"?`},
		"unknown block": {inTask("confg {}"),
			`job.hcl:4:1: Unsupported block type: Blocks of type "confg" are not expected here. Did you mean "config"?`},
		"argument for a block": {inTask("logs = 3"),
			`job.hcl:4:1: Unsupported argument: An argument named "logs" is not expected here. Did you mean to define a block ` +
				`of type "logs"?`},
		"block for an argument": {inTask("driver {}"), `job.hcl:4:1: Unsupported block type`},
		"unknown root block": {"jub \"x\" {}\n",
			`job.hcl:1:1: Unsupported block type: Blocks of type "jub" are not expected here. Did you mean "job"?`},
		"root argument": {"x = 1\njob \"j\" {}\n", `job.hcl:1:1: Unsupported argument`},
		"no job":        {"locals {}\n", `job.hcl:1:1: Missing job block`},
		"two jobs": {"job \"a\" {}\njob \"b\" {}\n",
			`job.hcl:2:1: Duplicate job block: A job file describes one job; another begins at line 1.`},
		"compose file": {"services:\n  web:\n    image: nginx\n",
			`job.hcl is a compose file and no job file: docs/from-compose.md`},
		"unit": {"[Unit]\nDescription=x\n", `job.hcl is a unit of systemd and no job file: docs/from-systemd.md`},
		"shell's braces": {inTask("config {\nargs = [<<EOF\na ${FOO#a}\nb\nEOF\n]\n}"),
			"job.hcl:6:3: Comment in ${…}: A # begins a comment there. Write a shell's own braces as $${, and as $$${ in a " +
				"task's config"},
		"shell's braces in quotes": {inTask("env {\na = \"${FOO#a}\"\n}"), "job.hcl:5:6: Comment in ${…}"},
		"no label":                 {"job {}\n", `job.hcl:1:5: Missing name for job: The block needs a name: job "name"`},
		"label too many":           {"job \"a\" \"b\" {}\n", `job.hcl:1:9: Extraneous label for job`},
		"syntax":                   {"job \"a\" {\n", `job.hcl:1:9: Unclosed configuration block`},
		"duplicate argument":       {inTask("user = \"a\"\nuser = \"b\""), `job.hcl:5:1: Attribute redefined`},
		"duplicate block": {inTask("resources {}\nresources {}"),
			`job.hcl:5:1: Duplicate resources block: Only one resources is allowed here.`},
		"duplicate map":    {inTask("env {}\nenv {}"), `job.hcl:5:1: Duplicate env block`},
		"map both ways":    {inTask("env = {}\nenv {}"), `job.hcl:5:1: Duplicate env block`},
		"duplicate config": {inTask("config {}\nconfig {}"), `job.hcl:5:1: Duplicate config block`},
		"duplicate volume": {"job \"j\" {\ngroup \"g\" {\nvolume \"v\" {}\nvolume \"v\" {}\n}\n}",
			`job.hcl:4:1: Duplicate volume block: There is already a volume "v".`},
		"duplicate identity": {inTask("identity {}\nidentity { name = \"default\" }"),
			`job.hcl:5:1: Duplicate identity block`},
		"bad number": {inTask("resources { cpu = \"lots\" }"),
			`job.hcl:4:19: Unsuitable value: Argument "cpu": a number is required.`},
		"fraction": {inTask("resources { cpu = 1.5 }"), `job.hcl:4:19: Unsuitable value: Argument "cpu"`},
		"out of range": {"job \"j\" {\naffinity { weight = 300 }\n}",
			`job.hcl:2:21: Unsuitable value: Argument "weight"`},
		"runtime for a number": {inTask("resources { cpu = NOMAD_CPU }"),
			"The reference ${NOMAD_CPU} gets its value only when the task runs"},
		"bad duration": {inTask("kill_timeout = \"5\""),
			`job.hcl:4:16: Unsuitable value: Argument "kill_timeout": a duration is needed, like "30s" or "1h15m".`},
		"duration list": {inTask("kill_timeout = []"), `a duration is needed`},
		"list": {"job \"j\" {\ndatacenters = \"dc1\"\n}",
			`job.hcl:2:15: Unsuitable value: Argument "datacenters": list of string required, but have string.`},
		"null in a list":     {"job \"j\" {\ndatacenters = [\"a\", null]\n}", `job.hcl:2:15: Unsuitable value`},
		"config is no map":   {inTask("config = 3"), `a map of values is needed`},
		"argument and block": {inTask("config {\na = 1\na {}\n}"), `job.hcl:6:1`},
		"missing argument": {inTask("lifecycle {}"),
			`job.hcl:4:11: Missing required argument: The argument "hook" is required`},
		"unknown var":      {inTask("user = var.nope"), `job.hcl:4:11: Unsupported attribute`},
		"unknown local":    {inTask("user = local.nope"), `job.hcl:4:13: Unsupported attribute`},
		"unknown function": {inTask("user = nope()"), `job.hcl:4:8: Call to unknown function`},
		"scaling label":    {inTask("scaling \"disk\" {}"), `job.hcl:4:1: Unknown scaling label`},
		"two operators": {inTask("constraint {\nversion = \"1\"\noperator = \"=\"\n}"),
			`job.hcl:5:1: Conflicting operators: "operator" and "version" both say the operator; keep one.`},
		"local cycle": {"locals {\na = local.b\nb = local.a\n}\njob \"j\" {}",
			`job.hcl:2:1: Cycle of locals: Local "a" needs its own value.`},
		"local of itself": {"locals {\na = local\n}\njob \"j\" {}", `job.hcl:2:1: Invalid local`},
		"local twice": {"locals {\na = 1\n}\nlocals {\na = 2\n}\njob \"j\" {}",
			`job.hcl:5:1: Duplicate local: Local "a" is defined at line 2 already.`},
		"variable twice": {"variable \"a\" {}\nvariable \"a\" {}\njob \"j\" {}", `job.hcl:2:1: Duplicate variable`},
		"variable name":  {"variable \"a b\" {}\njob \"j\" {}", `job.hcl:1:1: Invalid variable name`},
		"variable without value": {"variable \"a\" {}\njob \"j\" {}",
			`job.hcl:1:1: Missing value for a variable: Variable "a" has no default. Give it a value with -var a=..., ` +
				`-var-file, or NOMAD_VAR_a in the environment.`},
		"variable argument": {"variable \"a\" {\ndefalt = 1\n}\njob \"j\" {}",
			`job.hcl:2:1: Unsupported argument: An argument named "defalt" is not expected here. Did you mean "default"?`},
		"variable type": {"variable \"a\" {\ntype = strng\n}\njob \"j\" {}",
			`job.hcl:2:8: Invalid type specification`},
		"default of another type": {"variable \"a\" {\ntype = number\ndefault = \"x\"\n}\njob \"j\" {}",
			`job.hcl:3:11: Unsuitable value for a variable: Variable "a": a number is required.`},
		"function in a default": {"variable \"a\" {\ndefault = upper(\"x\")\n}\njob \"j\" {}",
			`job.hcl:2:11: Function calls not allowed`},
		"validation": {"variable \"a\" {\ndefault = 1\nvalidation {\ncondition = var.a > 1\nerror_message = " +
			"\"Too small.\"\n}\n}\njob \"j\" {}", `job.hcl:4:13: Invalid value for variable a: Too small.`},
		"validation is no bool": {"variable \"a\" {\ndefault = 1\nvalidation {\ncondition = \"x\"\nerror_message = " +
			"\"m\"\n}\n}\njob \"j\" {}", `job.hcl:4:13: Invalid condition`},
		"missing file":             {inTask("user = file(\"nope\")"), `job.hcl:4:14: Invalid function argument`},
		"several at once":          {inTask("a = 1\nb = 2"), "job.hcl:5:1: Unsupported argument"},
		"dynamic without for_each": {inTask("dynamic \"env\" {\ncontent {}\n}"), `Missing required argument`},
	} {
		t.Run(name, func(t *testing.T) {
			job, err := parse(t, tc.body)
			if err == nil {
				t.Fatalf("no error; job %s", encode(t, job))
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got:\n%s\nwant:\n%s", err, tc.want)
			}
			if !errors.Is(err, jobspec.ErrInvalid) {
				t.Errorf("%v is not ErrInvalid", err)
			}
		})
	}
}

func TestErrorQuotesTheLine(t *testing.T) {
	_, err := parse(t, inTask("\tdrivr = \"raw_exec\""))
	want := "job.hcl:4:2: Unsupported argument: An argument named \"drivr\" is not expected here. Did you mean " +
		"\"driver\"?\n" +
		"     4 | \tdrivr = \"raw_exec\"\n" +
		"       | \t^^^^^"
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestJSONErrorsHavePlaces(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"syntax":  {"{\n\"ID\": }", "job.hcl:2:8: Invalid JSON"},
		"cut off": {`{"ID": "x"`, "Invalid JSON: unexpected end of JSON input"},
		"unknown field": {"{\"ID\": \"x\",\n \"Tipe\": \"batch\"}",
			`job.hcl:2:2: Unknown field: A job has no field Tipe. Did you mean "Type"?`},
		"unknown inside": {`{"Job": {"ID": "x", "TaskGroups": [{"Tasks": [{"Drivr": "a"}]}]}}`,
			`A job has no field Job.TaskGroups[0].Tasks[0].Drivr. Did you mean "Driver"?`},
		"unknown beside": {`{"Job": {"ID": "x"}, "EnforceIndex": true}`, `A job has no field EnforceIndex`},
		"wrong type":     {`{"ID": 3}`, `ID`},
		"duration text": {`{"ID": "x", "TaskGroups": [{"ShutdownDelay": "30s"}]}`,
			`durations in JSON are whole nanoseconds (30s is 30000000000), not a string`},
		"null group":  {`{"ID": "x", "TaskGroups": [null]}`, `Null value: TaskGroups[0] is null`},
		"null volume": {`{"ID": "x", "TaskGroups": [{"Volumes": {"v": null}}]}`, `TaskGroups[0].Volumes.v is null`},
		"null region": {`{"ID": "x", "Multiregion": {"Regions": [null]}}`, `Multiregion.Regions[0] is null`},
		"huge number": {`{"ID": "x", "TaskGroups": [{"Tasks": [{"Config": {"args": [1e400]}}]}]}`,
			"job.hcl:1:60: Number out of range: TaskGroups[0].Tasks[0].Config.args[0] is larger"},
		"more after": {`{"ID": "x"} {}`, `Invalid JSON`},
		"no ID":      {`{}`, `A JSON job needs at least an "ID"`},
		"null job":   {`{"Job": null}`, `A JSON job needs at least an "ID"`},
		"an array":   {`{"Job": []}`, `Unsuitable value`},
		"deep":       {strings.Repeat(`{"a":`, 20000), `exceeded max depth`},
		"deep in a driver": {`{"ID":"x","TaskGroups":[{"Tasks":[{"Config":` + strings.Repeat(`{"a":`, 20000) + `1` +
			strings.Repeat(`}`, 20000) + `}]}]}`, `exceeded max depth`},
		"object for a list": {`{"ID":"x","Datacenters":{"a":1}}`, `Unsuitable value`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tc.body)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got:\n%v\nwant:\n%s", err, tc.want)
			}
			if !errors.Is(err, jobspec.ErrInvalid) {
				t.Errorf("%v is not ErrInvalid", err)
			}
		})
	}
}

func TestJSONForms(t *testing.T) {
	wrapped, err := parse(t, `{"Job": {"ID": "x", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Config": {"n": `+
		`12345678901234567, "f": 0.5}}]}]}}`)
	must.OK(t, err)
	config := wrapped.TaskGroups[0].Tasks[0].Config
	if config["n"] != 12345678901234567 || config["f"] != 0.5 {
		t.Errorf("numbers in config: %#v", config)
	}
	if _, err := parseFile("testdata/canonical/wire.server.json", nil, jobspec.Config{}); err != nil {
		t.Errorf("the job as a server has it: %v", err)
	}
	same.As(t, "x", *wrapped.Name, "name")
	if _, err := jobspec.Parse(jobspec.Config{Filename: "j.json", Body: []byte(`{"ID":"x"}`),
		Vars: []string{"a=b"}}); !errors.Is(err, jobspec.ErrInvalid) {
		t.Errorf("-var with JSON: %v", err)
	}
}

func TestReadFileSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, content, 0o600))
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	must.OK(t, syscall.Mkfifo(fifo, 0o600))
	for name, tc := range map[string]struct {
		path string
		is   error
		want string
	}{
		"missing":   {filepath.Join(dir, "nope"), fs.ErrNotExist, "does not exist"},
		"directory": {dir, jobspec.ErrInvalid, "it is a directory"},
		"fifo":      {fifo, jobspec.ErrInvalid, "no regular file"},
		"device":    {"/dev/zero", jobspec.ErrInvalid, "no regular file"},
		"empty":     {write("empty", nil), jobspec.ErrInvalid, "is empty; it needs a job block"},
		"blank":     {write("blank", []byte(" \n")), jobspec.ErrInvalid, "is empty"},
		"binary": {write("binary", []byte("\x7fELF\x00\x00")), jobspec.ErrInvalid,
			"is not UTF-8 text; is it a program or an archive?"},
		"latin1":    {write("latin1", []byte("job \"\xe9\" {}")), jobspec.ErrInvalid, "not UTF-8 text"},
		"too large": {write("large", bytes.Repeat([]byte(" "), 4<<20+1)), jobspec.ErrInvalid, "larger than 4 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseFile(tc.path, nil, jobspec.Config{})
			if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	job, err := parseFile("-", strings.NewReader(`job "in" {}`), jobspec.Config{})
	if err != nil || *job.ID != "in" {
		t.Errorf("from stdin: %v, %v", job, err)
	}
}

func TestJSONThatIsNoObject(t *testing.T) {
	_, err := jobspec.Parse(jobspec.Config{Filename: "job.json", Body: []byte("[]")})
	if want := "A job is an object, and this is of type array."; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
