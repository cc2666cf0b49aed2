package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/examples/doctest"
	"taskapi/internal/must"
)

// nomadAnswer is a line of testdata/nomad/answers.jsonl: what an agent of Nomad 2.0.6 answered to its operator, for
// the job beside that file. In the JSON are types in the place of values: s, n, b and 0 for null, with "|" between
// those that were there in different elements of an array.
type nomadAnswer struct {
	Method, Path string
	Body         map[string]any
	Headers      map[string]string // beside the operator's token
	Status       int
	Index        string // "read" or "write", by the headers; empty without an index
	Event        string // topic and type of an event; then there is no request
	JSON         any
}

func (a nomadAnswer) name() string {
	if a.Event != "" {
		return "event " + a.Event
	}
	return a.Method + " " + a.Path
}

// shape is the set of types at each path of some JSON values.
type shape map[string]map[string]bool

func (s shape) add(at, kind string) {
	if s[at] == nil {
		s[at] = map[string]bool{}
	}
	s[at][kind] = true
}

// anyKey are the keys of objects that have a member for each of something: IDs of checks and processes.
var anyKey = regexp.MustCompile(`^(\d+|[0-9a-f]{32,}|[0-9a-f]{8}-[0-9a-f-]{27})$`)

// of adds the types of a value.
func (s shape) of(at string, value any) {
	switch v := value.(type) {
	case nil:
		s.add(at, "null")
	case bool:
		s.add(at, "bool")
	case float64:
		s.add(at, "number")
	case string:
		s.add(at, "string")
	case []any:
		s.add(at, "array")
		for _, element := range v {
			s.of(at+"[]", element)
		}
	case map[string]any:
		s.add(at, "object")
		for key, member := range v {
			s.of(at+"."+anyKey.ReplaceAllString(key, "*"), member)
		}
	}
}

// recorded adds the types that a line of the file has.
func (s shape) recorded(at string, types any) {
	words := map[string]string{"s": "string", "n": "number", "b": "bool", "0": "null"}
	switch v := types.(type) {
	case string:
		for letter := range strings.SplitSeq(v, "|") {
			s.add(at, words[letter])
		}
	case []any:
		s.add(at, "array")
		if len(v) > 0 && v[0] != "" {
			s.recorded(at+"[]", v[0])
		}
		if len(v) > 1 {
			s.recorded(at, v[1])
		}
	case map[string]any:
		s.add(at, "object")
		for key, member := range v {
			if key == "" {
				s.recorded(at, member)
				continue
			}
			s.recorded(at+"."+key, member)
		}
	}
}

// differences returns where two shapes differ: a key once, and not what is in it, and nothing of the elements of an
// empty array.
func (s shape) differences(other shape) (all []string) {
	paths := maps.Clone(s)
	maps.Copy(paths, other)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		parent, isElement := strings.CutSuffix(path, "[]")
		if !isElement {
			parent = path[:max(strings.LastIndexByte(path, '.'), 0)]
		}
		nomads, ours := s[path], other[path]
		switch {
		case maps.Equal(nomads, ours):
		case path != "" && (s[parent] == nil || other[parent] == nil):
		case isElement && (nomads == nil || ours == nil):
		default:
			all = append(all, fmt.Sprintf("%s is %s, and %s here", path, typesOf(nomads), typesOf(ours)))
		}
	}
	return all
}

func typesOf(kinds map[string]bool) string {
	if len(kinds) == 0 {
		return "absent"
	}
	return strings.Join(slices.Sorted(maps.Keys(kinds)), " or ")
}

// deliberate are the differences that stay, with their reasons: the rows of a table in docs/api.md. where is an
// expression for the lines that the test makes of differences.
var deliberate = []struct{ where, what, why string }{
	{`taskapi is absent`,
		"`/v1/agent/self` and `/v1/agent/members` also have `taskapi`",
		"its version, beside Nomad's"},
	{`UI\.ShowCLIHints is absent`,
		"the `UI` of `/v1/agent/self` has `ShowCLIHints`, false",
		"the `nomad` command would point to a web UI, which is not there"},
	{`\.stats\.(raft|serf)`,
		"`/v1/agent/self` has of `raft` only `num_peers`, no `serf`, and of the `config` only `ACL`, `Client`, " +
			"`Datacenter`, `DisableUpdateCheck`, `EnableDebug`, `NodeName`, `Region`, `Server`, `TLSConfig`, " +
			"`Telemetry`, `UI` and `Version`",
		"there is no cluster, and the settings of taskapi are not a Nomad agent's"},
	{`Constraints is array`,
		"groups have no implicit `Constraints`",
		"Nomad adds them for the placement of services; here nothing is placed"},
	{`ScoreMetaData\[\]\.Scores`,
		"an allocation's `Metrics` have no scores",
		"there is one node to choose from"},
	{`\.Drivers\.`,
		"`Drivers` has raw_exec alone",
		"there are no others; a Nomad agent also lists those that it can't run"},
	{`NodeNetworks\[\]\.Addresses`,
		"`NodeNetworks` has no bridge",
		"tasks use the machine's network"},
	{`ExpirationTime`,
		"`/v1/acl/token/self` has an `ExpirationTime`",
		"the operator's token is good for an hour"},
	{`Matches\.scaling_policy`,
		"a search finds no scaling policy",
		"nothing is scaled"},
	{`/metrics: \.(Counters|Gauges)`,
		"metrics: no meta of the job, the group and the task in the labels, no " +
			"`nomad_client_unallocated_network`, other counters",
		"meta may be secret, and `telemetry.listen` serves metrics without a token; bandwidth is not shared " +
			"out; counters are taskapi's own"},
	{`jwks\.json`,
		"keys are of the kind `OKP`, with `crv` and `x`",
		"identities are signed with Ed25519, Nomad's by default with RSA"},
	{`status 500, and 40[0459]`,
		"400, 404 or 409 where Nomad has 500: an ID that is no UUID, an unknown region, node, task, version " +
			"or context, a service or a job that is not there, another `JobModifyIndex` than was enforced, a " +
			"task together with all tasks",
		"what the caller does wrong is no fault of the server"},
	{`agent/self: status 500`,
		"403 for every token that is not valid, where Nomad has 403 or 500 by kind",
		"the same"},
	{`agent/self: status 403, and 401`,
		"401 without a token",
		"as on Nomad's own task socket; on its TCP port that is an anonymous caller"},
	{`agent/self: status 200, and 400`,
		"400 for two different tokens in `X-Nomad-Token` and `Authorization`",
		"who sent the request would be a guess; Nomad takes the first"},
	{`(stats\?task=|fs/cat).*status 200, and 404`,
		"404 for statistics of an unknown task, and for the content of a file that is not there",
		"Nomad's 200 has zeros, and the error as content"},
	{`DELETE /v1/job/nope: status 200, and 404`,
		"404 when an unknown job is stopped",
		"Nomad's 200 names no evaluation, for which clients would wait"},
	{`signal: status 200, and 400`,
		"400 for an unknown signal",
		"Nomad sends SIGINT instead"},
	{`submission: status 400, and 200`,
		"`/v1/job/:job/submission` without `version` is that of the present one",
		"it is the one that is mostly wanted"},
	{`PUT /v1/client/metadata: status 405`,
		"`PUT /v1/client/metadata` does what POST does",
		"PUT and POST are the same for every other change"},
	{`plan: \.Diff`,
		"a plan's `Diff` names each change as a field of the job by its whole path, with what it needs",
		"the list is that of `taskapi update`, which shows no secret values"},
	{`event (Evaluation|Job) PlanResult`,
		"no events `PlanResult` of evaluations and jobs",
		"a plan is carried out with its evaluation, whose two events are sent"},
	{`event Deployment AllocationUpdated`,
		"no events `AllocationUpdated` of deployments",
		"an allocation's health ends its deployment, which is its `DeploymentStatusUpdate`"},
	{`event Node AllocationUpdated`,
		"no events `AllocationUpdated` of nodes",
		"the node is as it was; the allocation's own event has what changed"},
}

// TestNomadsAnswers holds every answer against what Nomad has answered: the status, the keys of JSON and their types,
// and the headers with an index.
func TestNomadsAnswers(t *testing.T) {
	t.Parallel()
	job := must.Read(t, "testdata/nomad/job.nomad.hcl")
	r := startRun(t, shortDir(t), string(job))
	sdk := r.operator()
	r.eventually("healthy", func() bool {
		alloc, _, err := sdk.Allocations().Info(testAllocID, nil)
		if err != nil || alloc.DeploymentStatus == nil {
			return false
		}
		healthy := alloc.DeploymentStatus.Healthy
		return healthy != nil && *healthy
	})
	found := map[string]bool{}
	differ := func(name, what string) {
		for _, d := range deliberate {
			if regexp.MustCompile(d.where).MatchString(name + ": " + what) {
				found[d.where] = true
				return
			}
		}
		t.Errorf("%s: %s", name, what)
	}
	nomad := nomadAPI{r, sdk}
	var events map[string]shape // they come last in the file, and the requests before them make some
	recorded := must.Get(os.Open("testdata/nomad/answers.jsonl"))(t)
	defer recorded.Close()
	for lines := json.NewDecoder(recorded); lines.More(); {
		var want nomadAnswer
		must.OK(t, lines.Decode(&want))
		got := shape{}
		if want.Event != "" {
			if events == nil {
				events = nomad.events(t)
			}
			if got = events[want.Event]; got == nil {
				differ(want.name(), "is not sent")
				continue
			}
		} else {
			status, index, value := nomad.do(t, want)
			if status != want.Status {
				differ(want.name(), fmt.Sprintf("status %d, and %d here", want.Status, status))
				continue
			}
			if index != want.Index {
				differ(want.name(), fmt.Sprintf("index %q, and %q here", want.Index, index))
			}
			if want.JSON != nil {
				got.of("", value)
			}
		}
		if want.JSON != nil {
			nomads := shape{}
			nomads.recorded("", want.JSON)
			for _, what := range nomads.differences(got) {
				differ(want.name(), what)
			}
		}
	}
	var table strings.Builder
	table.WriteString("| what | why |\n|---|---|\n")
	for _, d := range deliberate {
		if !found[d.where] {
			t.Errorf("nothing differs any more by %q: take it from the list", d.where)
		}
		fmt.Fprintf(&table, "| %s | %s |\n", d.what, d.why)
	}
	doctest.Table(t, "../../docs/api.md", "cmd/taskapi", table.String())
}

// nomadAPI sends what was sent to Nomad to an agent.
type nomadAPI struct {
	r   *running
	sdk *api.Client
}

func (n nomadAPI) send(t *testing.T, method, path string, body []byte, headers map[string]string) *http.Response {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, bytes.NewReader(body)))(t)
	request.Header.Set("X-Nomad-Token", n.r.file("operator.token"))
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	return must.Get(overUnix(n.r.layout.OperatorSocket(testAllocID)).Do(request))(t)
}

// do sends the request that was answered so, and returns the status, the headers with an index and the value of the
// answer.
func (n nomadAPI) do(t *testing.T, want nomadAnswer) (status int, index string, value any) {
	t.Helper()
	alloc := asked(n.sdk.Allocations().Info(testAllocID, nil))(t)
	var body []byte
	if want.Body != nil {
		if want.Body["Job"] == "{job}" {
			want.Body["Job"] = alloc.Job
		}
		body = must.Get(json.Marshal(want.Body))(t)
	}
	path := strings.NewReplacer("{alloc}", alloc.ID, "{job}", alloc.JobID, "{eval}", alloc.EvalID, "{node}", alloc.NodeID,
		"{deployment}", alloc.DeploymentID).
		Replace(want.Path)
	answer := n.send(t, want.Method, path, body, want.Headers)
	defer answer.Body.Close()
	if answer.Header.Get("X-Nomad-Index") != "" {
		index = "write"
		if answer.Header.Get("X-Nomad-Knownleader") != "" {
			index = "read"
		}
	}
	text := must.Get(io.ReadAll(answer.Body))(t)
	if want.JSON != nil && answer.StatusCode == want.Status {
		if err := json.Unmarshal(text, &value); err != nil {
			t.Errorf("%s: %v in %.200s", want.name(), err, text)
		}
	}
	return answer.StatusCode, index, value
}

// events returns the shapes of the events that there were, by their topics and types, once one of the allocation's
// state is among them.
func (n nomadAPI) events(t *testing.T) map[string]shape {
	t.Helper()
	stream := n.send(t, http.MethodGet, "/v1/event/stream?index=1", nil, nil)
	defer stream.Body.Close()
	all := map[string]shape{}
	lines := bufio.NewScanner(stream.Body)
	lines.Buffer(nil, 1<<20)
	for beats := 0; (beats < 2 || all["Allocation AllocationUpdated"] == nil) && lines.Scan(); {
		if lines.Text() == "{}" { // the first comes before the events that there were, and the second after them
			beats++
			continue
		}
		var line struct{ Events []map[string]any }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%v in %.200s", err, lines.Text())
		}
		for _, e := range line.Events {
			name := fmt.Sprint(e["Topic"], " ", e["Type"])
			if all[name] == nil {
				all[name] = shape{}
			}
			all[name].of("", e)
		}
	}
	must.OK(t, lines.Err())
	return all
}
