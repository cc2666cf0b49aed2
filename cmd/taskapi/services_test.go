package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

// The allocations of these tests, all in one data directory.
const (
	finderID  = "f1f1f1f1-0000-4000-8000-000000000001"
	servingID = "5e5e5e5e-0000-4000-8000-000000000002"
	secondID  = "5e5e5e5e-0000-4000-8000-000000000003"
)

// servingJob has a service of its group and one of its task.
const servingJob = `
variable "namespace" {
  type    = string
  default = "default"
}
job "serving" {
  namespace = var.namespace
  group "g" {
    network {
      port "http" {}
    }
    service {
      name     = "web"
      provider = "nomad"
      port     = "http"
      tags     = ["b", "a"]
    }
    task "server" {
      driver = "raw_exec"
      service {
        name     = "own-${TASK}"
        provider = "nomad"
        address  = "10.1.2.3"
        port     = 4711
      }
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}
`

// neighbours are allocations of one data directory, each with a taskapi process of its own.
type neighbours struct {
	t     *testing.T
	dir   string
	files map[string]string // job files by ID
	at    map[string]taskapiProcess
}

func newNeighbours(t *testing.T) *neighbours {
	t.Helper()
	n := &neighbours{t: t, dir: shortDir(t), files: map[string]string{}, at: map[string]taskapiProcess{}}
	files := t.TempDir()
	jobs := map[string]string{finderID: fmt.Sprintf(sleepJob, "finder"), servingID: servingJob, secondID: servingJob}
	for id, job := range jobs {
		n.files[id] = writeFile(t, filepath.Join(files, id+".nomad.hcl"), job)
	}
	t.Cleanup(func() {
		for id := range n.at {
			n.stop(id)
		}
		if left := processesOf(t, n.dir); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return n
}

// start runs an allocation and waits until it answers.
func (n *neighbours) start(id string, flags ...string) {
	n.t.Helper()
	n.started(id, startCommand(n.t, self(n.t), append([]string{"run", "-data-dir", n.dir, "-alloc-id", id, n.files[id]},
		flags...)...))
}

// started waits until a process that runs an allocation answers.
func (n *neighbours) started(id string, p taskapiProcess) {
	n.t.Helper()
	n.at[id] = p
	until(n.t, p, "it runs", func() bool {
		client, err := n.operator(id)
		if err != nil {
			return false
		}
		defer client.Close()
		alloc, _, err := client.Allocations().Info(id, nil)
		return err == nil && alloc.ClientStatus == api.AllocClientStatusRunning && p.ProcessState == nil
	})
}

// kill kills an allocation's taskapi, and leaves its keeper.
func (n *neighbours) kill(id string) {
	n.t.Helper()
	kill(n.t, n.at[id])
	delete(n.at, id)
}

// stop ends an allocation.
func (n *neighbours) stop(id string) {
	n.t.Helper()
	p := n.at[id]
	delete(n.at, id)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Error(err)
	}
	if err := p.Wait(); err != nil {
		n.t.Errorf("stopped: %v\n%s", err, p.out)
	}
}

// operator returns the SDK on an allocation's operator socket.
func (n *neighbours) operator(id string) (*api.Client, error) { return operatorOf(n.dir, id) }

// finder returns the SDK on the finder's own socket, with its own identity.
func (n *neighbours) finder() *api.Client {
	n.t.Helper()
	client := must.Get(taskOf(datadir.Dir(n.dir).Alloc(finderID), "t"))(n.t)
	n.t.Cleanup(client.Close)
	return client
}

func (n *neighbours) finderPath(name string) string {
	return filepath.Join(datadir.Dir(n.dir).Alloc(finderID), "t", "secrets", name)
}

// operatorOf returns the SDK as the operator of an allocation, which may not answer yet.
func operatorOf(dataDir, id string) (*api.Client, error) {
	d := datadir.Dir(dataDir)
	return sdkOn(d.OperatorSocket(id), d.OperatorToken(id))
}

// taskOf returns the SDK as a task of an allocation, over the task's own socket.
func taskOf(alloc, task string) (*api.Client, error) {
	secrets := filepath.Join(alloc, task, "secrets")
	return sdkOn(filepath.Join(secrets, "api.sock"), filepath.Join(secrets, "nomad_token"))
}

func sdkOn(socket, tokenFile string) (*api.Client, error) {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	return api.NewClient(&api.Config{Address: "unix://" + socket, SecretID: strings.TrimSpace(string(token))})
}

// found waits, by blocking queries of the finder, until so many allocations have registered a service, and returns
// them.
func (n *neighbours) found(name string, count int) []*api.ServiceRegistration {
	n.t.Helper()
	client := n.finder()
	var index uint64
	for give := time.Now().Add(deadline); ; {
		services, meta, err := client.Services().Get(name, &api.QueryOptions{WaitIndex: index, WaitTime: deadline})
		must.OK(n.t, err)
		if len(services) == count {
			return services
		}
		if time.Now().After(give) {
			n.t.Fatalf("service %s has %d registrations, want %d", name, len(services), count)
		}
		index = meta.LastIndex
	}
}

// TestServices: a task finds the services of another allocation of the machine over its own socket, until that stops;
// the event stream, the command line and the allocation itself say the same.
func TestServices(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	n.start(finderID)
	client := n.finder()
	if services, meta, err := client.Services().List(nil); err != nil || len(services) != 0 || meta.LastIndex == 0 {
		t.Fatalf("at the beginning: %+v, %+v, %v", services, meta, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := must.Get(client.EventStream().Stream(ctx, map[api.Topic][]string{api.TopicService: {"*"}}, 0, nil))(t)
	n.start(servingID)
	web := n.found("web", 1)[0]
	own := n.found("own-server", 1)[0]
	if web.ID != "_nomad-task-"+servingID+"-group-g-web-http" || web.AllocID != servingID || web.JobID != "serving" ||
		web.Namespace != "default" ||
		web.Datacenter != "dc1" || web.NodeID == "" || web.Port < 1024 || net.ParseIP(web.Address) == nil ||
		!slices.Equal(web.Tags, []string{"b", "a"}) {
		t.Errorf("web = %+v", web)
	}
	if own.Address != "10.1.2.3" || own.Port != 4711 || own.Tags == nil {
		t.Errorf("the task's service = %+v", own)
	}
	operator := must.Get(n.operator(servingID))(t)
	defer operator.Close()
	if services, _, err := operator.Allocations().Services(servingID, nil); err != nil || len(services) != 2 {
		t.Errorf("the allocation's services: %+v, %v", services, err)
	}
	out := taskapi(t, "service", "list", "--data-dir", n.dir)
	if !strings.Contains(out, "own-server") || !strings.Contains(out, "[a,b]") {
		t.Errorf("service list:\n%s", out)
	}

	n.start(secondID, "-var", "namespace=prod")
	if services, _, err := client.Services().Get("web", &api.QueryOptions{Namespace: "prod"}); err != nil ||
		len(services) != 0 {
		t.Errorf("the services of another namespace: %+v, %v", services, err)
	}
	if services, _, err := operator.Services().Get("web", &api.QueryOptions{Namespace: "*"}); err != nil ||
		len(services) != 2 {
		t.Errorf("those of all namespaces, to an operator: %+v, %v", services, err)
	}
	n.stop(secondID)

	n.stop(servingID)
	n.found("web", 0)
	n.found("own-server", 0)
	var seen []string
	for len(seen) < 4 {
		select {
		case line := <-stream:
			must.OK(t, line.Err)
			for _, e := range line.Events {
				s := must.Get(e.Service())(t)
				seen = append(seen, e.Type+" "+s.ServiceName)
			}
		case <-time.After(deadline):
			t.Fatalf("events: %v", seen)
		}
	}
	for _, want := range []string{"ServiceRegistration web", "ServiceRegistration own-server", "ServiceDeregistration web",
		"ServiceDeregistration own-server"} {
		if !slices.Contains(seen, want) {
			t.Errorf("no event %q: %v", want, seen)
		}
	}
}

// witness looks at a service all the time, by blocking queries.
type witness struct {
	stop func()

	mu   sync.Mutex // guards seen
	seen []string   // what differed from one look to the next
}

// watch begins to look at a service, which is there.
func (n *neighbours) watch(name string) *witness {
	n.t.Helper()
	client := n.finder()
	ctx, cancel := context.WithCancel(n.t.Context())
	w := &witness{}
	var running sync.WaitGroup
	running.Go(func() {
		var index uint64
		var last string
		for ctx.Err() == nil {
			services, meta, err := client.Services().Get(name,
				(&api.QueryOptions{WaitIndex: index, WaitTime: time.Second}).WithContext(ctx))
			if ctx.Err() != nil {
				return
			}
			now := fmt.Sprint(err)
			if err == nil {
				index, now = meta.LastIndex, fmt.Sprintf("%d", len(services))
				for _, s := range services { // one that was gone for a moment has another index
					now += fmt.Sprintf(" %s:%d since %d", s.Address, s.Port, s.CreateIndex)
				}
			}
			if now != last {
				w.mu.Lock()
				w.seen = append(w.seen, now)
				w.mu.Unlock()
				last = now
			}
		}
	})
	w.stop = func() {
		cancel()
		running.Wait()
	}
	n.t.Cleanup(w.stop)
	return w
}

func (w *witness) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// TestServicesOutliveTheirAgent: while tasks run nobody misses their services, whatever happens to the taskapi: it is
// killed, resumed, and taken over by another version. When its keeper is killed with it, they are gone.
func TestServicesOutliveTheirAgent(t *testing.T) {
	t.Parallel()
	next := buildNext(t)
	n := newNeighbours(t)
	n.start(finderID)
	n.start(servingID)
	before := n.found("web", 1)[0]
	w := n.watch("web")

	n.kill(servingID)
	n.lookedAt("without its taskapi", "web", before)
	n.start(servingID)
	n.lookedAt("resumed", "web", before)
	old := n.at[servingID]
	n.started(servingID, startTakeover(t, next, n.dir, servingID))
	if err := old.Wait(); err != nil {
		t.Errorf("the one that was taken over: %v\n%s", err, old.out)
	}
	n.lookedAt("taken over", "web", before)
	n.kill(servingID)
	n.lookedAt("without the one that took over", "web", before)
	w.stop()
	if seen := w.all(); len(seen) != 1 {
		t.Errorf("somebody who looked all the time has seen %q, want no change", seen)
	}

	n.start(servingID)
	n.kill(servingID)
	if killKeeper(t, datadir.Dir(n.dir).Alloc(servingID)) != 1 {
		t.Fatalf("no keeper: %v", processesOf(t, n.dir))
	}
	n.found("web", 0)
	n.start(servingID)
	if after := n.found("web", 1)[0]; after.CreateIndex <= before.ModifyIndex {
		t.Errorf("after a crash of both: %+v, want another registration than %+v", after, before)
	}
}

// lookedAt looks whether a service is as it was.
func (n *neighbours) lookedAt(when, name string, want *api.ServiceRegistration) {
	n.t.Helper()
	n.t.Logf("%s", when)
	got := n.found(name, 1)[0]
	if got.ID != want.ID || got.CreateIndex != want.CreateIndex || got.ModifyIndex != want.ModifyIndex ||
		got.Port != want.Port {
		n.t.Errorf("%s: %s = %+v, was %+v", when, name, got, want)
	}
}

// consulTemplate builds the released program.
func consulTemplate(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "install", "-trimpath", "github.com/hashicorp/consul-template@v0.41.1")
	build.Env = append(os.Environ(), "GOBIN="+bin, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	return filepath.Join(bin, "consul-template")
}

// startConsulTemplate starts the program until the test ends, with the identity in a task's directory of secrets and
// with templates as FROM:TO.
func startConsulTemplate(t *testing.T, program, secrets string, templates ...string) taskapiProcess {
	t.Helper()
	token := strings.TrimSpace(readFile(t, filepath.Join(secrets, "nomad_token")))
	address := "http://" + relay(t, filepath.Join(secrets, "api.sock"))
	config := writeFile(t, filepath.Join(t.TempDir(), "config.hcl"),
		fmt.Sprintf("nomad {\n  address = %q\n  token = %q\n}\n", address, token))
	args := []string{"-config", config}
	for _, template := range templates {
		args = append(args, "-template", template)
	}
	p := startCommand(t, program, args...)
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		_ = p.Wait()
	})
	return p
}

// relay serves a Unix socket at a TCP address, as socat does, for programs that know no Unix sockets.
func relay(t *testing.T, path string) (address string) {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer client.Close()
				server, err := net.Dial("unix", path)
				if err != nil {
					return
				}
				defer server.Close()
				var both sync.WaitGroup
				both.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() }) // no answer is waited for any more
				_, _ = io.Copy(client, server)
				_ = client.Close()
				both.Wait()
			})
		}
	})
	return listener.Addr().String()
}

// TestConsulTemplate: the released consul-template renders services and variables with a task's identity. It waits for
// those that are not there, and renders again when another allocation starts or stops, or another process writes.
func TestConsulTemplate(t *testing.T) {
	t.Parallel()
	program := consulTemplate(t)
	n := newNeighbours(t)
	n.start(finderID)
	files := t.TempDir()
	services, secret := filepath.Join(files, "services"), filepath.Join(files, "secret")
	ofServices := writeFile(t, services+".ctmpl", `{{range nomadServices}}{{.Name}} {{.Tags | join ","}}
{{end}}{{range nomadService "web"}}{{.ID}} {{.Address}}:{{.Port}}
{{end}}end
`)
	ofVariables := writeFile(t, secret+".ctmpl", `{{with nomadVar "nomad/jobs/finder"}}password {{.password}}{{end}}
{{range nomadVarList "nomad/jobs"}}listed {{.Path}}
{{end}}`)
	p := startConsulTemplate(t, program, filepath.Dir(n.finderPath("api.sock")), ofServices+":"+services,
		ofVariables+":"+secret)
	is := func(what, file string, lines int, want ...string) {
		t.Helper()
		until(t, p, what, func() bool {
			text, _ := os.ReadFile(file)
			for _, w := range want {
				if !strings.Contains(string(text), w) {
					return false
				}
			}
			return strings.Count(string(text), "\n") == lines
		})
	}
	const first, second = "_nomad-task-" + servingID + "-group-g-web-http", "_nomad-task-" + secondID + "-group-g-web-http"
	is("no service is rendered", services, 1, "end")
	n.start(servingID)
	is("the service is rendered", services, 4, "web a,b", "own-server", first)
	n.start(secondID)
	is("the second one, too", services, 5, first, second)
	n.stop(servingID)
	is("the first one has gone", services, 4, second)
	n.stop(secondID)
	is("all are gone", services, 1, "end")

	putColour(t, n.dir, "nomad/jobs/other", "another job's")
	if exists(secret) {
		t.Error("rendered before the variable was there")
	}
	for _, password := range []string{"one", "two"} {
		taskapi(t, "var", "put", "-data-dir", n.dir, "-force", "nomad/jobs/finder", "password="+password)
		is("the variable is rendered", secret, 2, "password "+password, "listed nomad/jobs/finder\n")
	}
}
