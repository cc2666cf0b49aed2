package handlers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/jobs"
	"taskapi/internal/must"
)

// secretJob is a job in which each task has a secret, its name in it, wherever a job has one.
func secretJob(base *api.Job) *api.Job {
	job := *base
	job.Meta = map[string]string{"public": "of the job"}
	group, other := *base.TaskGroups[0], api.TaskGroup{Name: new("elsewhere"),
		Meta: map[string]string{"m": "hunter2-elsewhere"}}
	group.Meta = map[string]string{"public": "of the group"}
	group.Tasks, group.Services = nil, []*api.Service{
		{Name: "of-the-group", Checks: []api.ServiceCheck{{Name: "c", Type: "http", Path: "/ok?key=hunter2-group"}}},
		{Name: "of-db", TaskName: "db", Checks: []api.ServiceCheck{{Name: "c", Type: "http", Path: "/ok",
			Body: "hunter2-db"}}},
		{Name: "of-server", TaskName: "server", Checks: []api.ServiceCheck{{Name: "c", Type: "http", Path: "/ok",
			Body: "hunter2-server"}}},
	}
	for _, name := range []string{"server", "db"} {
		secret := "hunter2-" + name
		group.Tasks = append(group.Tasks, &api.Task{
			Name: name, Driver: "raw_exec", User: "nobody", Leader: true,
			Env: map[string]string{"PASSWORD": secret}, Meta: map[string]string{"password": secret},
			Config:     map[string]any{"command": "/bin/" + secret, "args": []any{secret}},
			Templates:  []*api.Template{{EmbeddedTmpl: &secret, DestPath: &secret}},
			Identity:   &api.WorkloadIdentity{Name: "default", File: true, Filepath: secret},
			Identities: []*api.WorkloadIdentity{{Name: "vault", Audience: []string{"vault"}, Filepath: secret}},
			Artifacts:  []*api.TaskArtifact{{GetterSource: &secret, GetterHeaders: map[string]string{"a": secret}}},
			Actions:    []*api.Action{{Name: "dump-" + name, Command: secret, Args: []string{secret}}},
			Secrets:    []*api.Secret{{Name: secret}},
			Services: []*api.Service{{Name: "s-" + name, Checks: []api.ServiceCheck{{
				Name: "script", Type: "script", Command: secret, Args: []string{secret},
				Header: map[string][]string{"Authorization": {secret}},
			}}}},
		})
	}
	// which only has the caller's name
	other.Tasks = []*api.Task{{Name: "server", Env: map[string]string{"PASSWORD": "hunter2-elsewhere"}}}
	job.TaskGroups = []*api.TaskGroup{&group, &other}
	return &job
}

// secretServer is a server of an allocation of secretJob, with an event of its registration.
func secretServer(t *testing.T, changes ...func(*handlers.Config)) *server {
	t.Helper()
	alloc := another(t, func(a *api.Allocation) { a.Job = secretJob(a.Job) })
	log := events.New()
	log.Begin()
	must.OK(t, log.PutAllocs(t.Context(), []*api.Allocation{alloc.snapshot()}))
	return newServer(t, alloc, append([]func(*handlers.Config){everyRoute, func(c *handlers.Config) {
		c.Events, c.History = log, secretHistory(alloc.snapshot().Job)
	}}, changes...)...)
}

// secretHistory is two versions of a job that differ in a secret of db.
func secretHistory(latest *api.Job) jobs.History {
	earlier, now := *latest, *latest
	earlier.TaskGroups = []*api.TaskGroup{new(*latest.TaskGroups[0])}
	earlier.TaskGroups[0].Tasks = append([]*api.Task{}, latest.TaskGroups[0].Tasks...)
	db := *latest.TaskGroups[0].Tasks[1]
	db.Env = map[string]string{"PASSWORD": "hunter2-db-old"}
	earlier.TaskGroups[0].Tasks[1] = &db
	earlier.Version, now.Version = new(uint64(1)), new(uint64(2))
	submission := func() *api.JobSubmission {
		return &api.JobSubmission{Source: "hunter2-db", VariableFlags: map[string]string{"password": "hunter2-db"}}
	}
	return comparingHistory{{Job: &now, Submission: submission()}, {Job: &earlier, Submission: submission()}}
}

// comparingHistory says of each version what its last task's environment was and is.
type comparingHistory []jobs.Version

func (h comparingHistory) Versions() []jobs.Version { return h }

func (h comparingHistory) Compare(earlier, later *api.Job) []jobdiff.Change {
	env := func(j *api.Job) map[string]string { return j.TaskGroups[0].Tasks[1].Env }
	return []jobdiff.Change{{Path: "env", Text: fmt.Sprintf("%v to %v", env(earlier), env(later))}}
}

// firstLines is how much of a stream is read: the first heartbeat, and the registration.
const firstLines = 2

// readSome returns what a route answers: of a stream the first lines.
func readSome(t *testing.T, s *server, entry route.Route, target, token string) string {
	t.Helper()
	if entry.Answer != route.Stream {
		return s.do(t, http.MethodGet, target, token, "").Body
	}
	c := s.dial(t)
	fmt.Fprintf(c.Conn, "GET %s HTTP/1.1\r\nHost: local\r\nX-Nomad-Token: %s\r\n\r\n", target, token)
	response := must.Get(http.ReadResponse(c.Reader, nil))(t)
	defer c.Close() // which ends the body, too
	var text strings.Builder
	buffer := make([]byte, 1<<20)
	for lines := 0; lines < firstLines; lines = strings.Count(text.String(), "\n") {
		n, err := response.Body.Read(buffer)
		text.Write(buffer[:n])
		if err != nil {
			break
		}
	}
	return text.String()
}

// TestNoSecretOfAnotherTask: whatever a task reads, it finds its own passwords and nobody else's. The operator finds
// all, and so does a task that may run commands in the others.
func TestNoSecretOfAnotherTask(t *testing.T) {
	s := secretServer(t, func(c *handlers.Config) { c.Log = nil })
	whole := map[string]bool{}
	for _, entry := range handlers.Routes() {
		if entry.Methods[0] != http.MethodGet || entry.Answer == route.Absent || entry.Answer == route.Upgrade ||
			strings.HasPrefix(entry.Pattern, "/v1/client/fs/") {
			continue
		}
		target := strings.NewReplacer(
			"{alloc}", allocID, "{job}", "demo", "{node}", otherID, "{eval}", anyEval, "{namespace}", "default", "{name}", "x",
			"{deployment}", otherID, "{pool}", "default", "*", "nomad/jobs/demo",
		).Replace(entry.Pattern) + "?resources=true&meta=true&diffs=true"
		got := readSome(t, s, entry, target, goodToken)
		for _, secret := range []string{"hunter2-db", "hunter2-elsewhere", "hunter2-group"} {
			if at := strings.Index(got, secret); at >= 0 {
				t.Errorf("GET %s shows the task server %s: …%s…", target, secret, got[max(0, at-80):at+len(secret)])
			}
		}
		operators := readSome(t, s, entry, target, operator)
		if strings.Contains(operators, "hunter2-db") {
			whole[entry.Pattern] = true
			refused := strings.HasSuffix(entry.Pattern, "submission") || strings.HasPrefix(entry.Pattern, "/v1/node/")
			if !strings.Contains(got, "hunter2-server") && !refused {
				t.Errorf("GET %s does not show the task its own: %s", target, got)
			}
		}
	}
	for _, pattern := range []string{
		"/v1/allocation/{alloc}", "/v1/job/{job}", "/v1/job/{job}/versions", "/v1/job/{job}/submission",
		"/v1/job/{job}/actions",
		"/v1/node/{node}/allocations", "/v1/event/stream",
	} {
		if !whole[pattern] {
			t.Errorf("the operator finds no secret in %s: the test looks at nothing", pattern)
		}
	}
	reads := secretServer(t, func(c *handlers.Config) { c.Authenticator = readingExec{} })
	if got := reads.do(t, http.MethodGet, "/v1/allocation/"+allocID, execToken, "").Body; !strings.Contains(got,
		"hunter2-db") {
		t.Error("who may run commands in every task is not shown all of the job")
	}
}

// TestViewsAreApart: each task gets its own view, in whatever order tasks ask, also if there are more tasks than kept
// views.
func TestViewsAreApart(t *testing.T) {
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("task-%d", i))
	}
	alloc := another(t, func(a *api.Allocation) {
		job, group := *a.Job, *a.Job.TaskGroups[0]
		group.Tasks = nil
		for _, name := range names {
			group.Tasks = append(group.Tasks, &api.Task{Name: name, Env: map[string]string{"PASSWORD": "of-" + name + "."}})
		}
		job.TaskGroups = []*api.TaskGroup{&group}
		a.Job = &job
	})
	s := newServer(t, alloc, func(c *handlers.Config) { c.Authenticator = eachTask{} })
	for _, caller := range append(names, names...) {
		got := s.do(t, http.MethodGet, "/v1/allocation/"+allocID, caller, "").Body
		for _, name := range names {
			if strings.Contains(got, "of-"+name+".") != (name == caller) {
				t.Errorf("%s is shown the password of %s, or lacks its own", caller, name)
			}
		}
	}
}

// eachTask takes the name of a task for its token.
type eachTask struct{ fakeAuthenticator }

func (a eachTask) Authenticate(r *http.Request, owner auth.Owner, peer auth.Peer) (*auth.Principal, *auth.Denial) {
	task := r.Header.Get("X-Nomad-Token")
	r.Header.Set("X-Nomad-Token", goodToken)
	p, denial := a.fakeAuthenticator.Authenticate(r, owner, peer)
	p.Claims.Task = task
	return p, denial
}

// TestFilterIsNoOracle: a filter, a search or a blocking query tells nothing of what is not shown.
func TestFilterIsNoOracle(t *testing.T) {
	s := secretServer(t)
	for _, filter := range []string{
		`Job.TaskGroups.0.Tasks.1.Env.PASSWORD matches "^hunter2"`, `Job.TaskGroups.0.Tasks.1.Env.PASSWORD == "hunter2-db"`,
		`"PASSWORD" in Job.TaskGroups.0.Tasks.1.Env`, `Job.TaskGroups.0.Tasks.1.Meta is not empty`,
		`Job.TaskGroups.0.Tasks.1.Config is not empty`, `Job.TaskGroups.0.Tasks.1.Templates is not empty`,
	} {
		for _, target := range []string{"/v1/allocations", "/v1/jobs", "/v1/job/demo/allocations"} {
			asked := filter
			if target == "/v1/jobs" {
				asked = strings.ReplaceAll(filter, "Job.TaskGroups", "TaskGroups")
			}
			query := target + "?filter=" + strings.NewReplacer(" ", "%20", `"`, "%22", "^", "%5E").Replace(asked)
			whole, got := s.do(t, http.MethodGet, query, operator, ""), s.do(t, http.MethodGet, query, goodToken, "")
			if whole.Status != http.StatusOK || len(whole.Body) < 10 {
				t.Errorf("%s %s finds nothing for the operator: %d %s", target, asked, whole.Status, whole.Body)
			}
			if got.Status == http.StatusOK && got.Body != "[]" {
				t.Errorf("%s %s tells a task something: %d %s", target, asked, got.Status, got.Body)
			}
		}
	}
	for _, text := range []string{"hunter2-db", "/bin/hunter2-db"} {
		found, _, err := s.sdk(t, goodToken).Search().FuzzySearch(text, "all", &api.QueryOptions{WaitTime: time.Second})
		must.OK(t, err)
		for in, matches := range found.Matches {
			if len(matches) > 0 {
				t.Errorf("a search finds %v in %s", matches, in)
			}
		}
	}
}

// readingExec gives the token of a task that runs commands the right to read, too.
type readingExec struct{ fakeAuthenticator }

func (a readingExec) Authenticate(r *http.Request, owner auth.Owner, peer auth.Peer) (*auth.Principal, *auth.Denial) {
	p, denial := a.fakeAuthenticator.Authenticate(r, owner, peer)
	if p != nil {
		p.Capabilities = p.Capabilities.With(auth.ReadJob)
	}
	return p, denial
}
