package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	capi "github.com/hashicorp/consul/api"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/consul/consultest"
	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

// consulJob has a service of the group, which the agent checks and whose check restarts the task, and one of the task,
// which a script checks. Neither names a provider.
const consulJob = `
variable "web" {}
job "shop" {
  group "g" {
    shutdown_delay = "1h"
    network {
      port "http" {}
    }
    restart {
      attempts = 9
      delay    = "10ms"
    }
    service {
      name = "web"
      port = "http"
      tags = ["${NOMAD_GROUP_NAME}"]
      check {
        name     = "answers"
        type     = "http"
        path     = "/"
        port     = var.web
        interval = "1s"
        timeout  = "30s"
        check_restart {
          limit = 1
          grace = "0s"
        }
      }
    }
    task "t" {
      driver = "raw_exec"
      service {
        name = "worker"
        port = "http"
        check {
          name     = "looks"
          type     = "script"
          command  = "/bin/sh"
          args     = ["-c", "echo seen by $NOMAD_TASK_NAME"]
          interval = "1s"
          timeout  = "5s"
        }
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $$ > local/pid; exec sleep 1000"]
      }
    }
  }
}
`

// consulRun is what a test of services in Consul has: an agent, the one of CONSUL_HTTP_ADDR or its stand-in, and a
// server that it checks.
type consulRun struct {
	*testing.T
	dir, file, web string
	proxy          *consultest.Proxy
	agent          *capi.Agent
	keys           *capi.KV
	bad            atomic.Bool
}

func newConsulRun(t *testing.T) *consulRun {
	t.Helper()
	c := &consulRun{T: t, dir: shortDir(t), file: jobFile(t, consulJob)}
	address := os.Getenv("CONSUL_HTTP_ADDR")
	switch {
	case address == "":
		address = consultest.New(t).URL
	case !strings.Contains(address, "://"):
		address = "http://" + address
	}
	c.proxy = consultest.NewProxy(t, address)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := must.Get(capi.NewClient(&capi.Config{Address: address, HttpClient: &http.Client{Transport: transport}}))(t)
	c.agent, c.keys = client.Agent(), client.KV()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if c.bad.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(server.Close)
	c.web = server.URL[strings.LastIndex(server.URL, ":")+1:]
	return c
}

func (c *consulRun) start(flags ...string) taskapiProcess {
	return startProcess(c.T, c.dir, c.file, append([]string{"-o", "consul.address=" + c.proxy.URL, "-var", "web=" + c.web},
		flags...)...)
}

// services returns the names of an allocation's services in Consul.
func (c *consulRun) services(alloc string) []string {
	all := must.Get(c.agent.Services())(c)
	var names []string
	for id, s := range all {
		if strings.HasPrefix(id, "_nomad-task-"+alloc+"-") {
			names = append(names, s.Service)
		}
	}
	slices.Sort(names)
	return names
}

func (c *consulRun) registered(alloc string) func() bool {
	return func() bool { return slices.Equal(c.services(alloc), []string{"web", "worker"}) }
}

// checks returns the results that taskapi shows, by name.
func (c *consulRun) checks() map[string]api.AllocCheckStatus {
	client, err := operatorOf(c.dir, testAllocID)
	if err != nil {
		return nil
	}
	defer client.Close()
	found, err := client.Allocations().Checks(testAllocID, nil)
	if err != nil {
		return nil
	}
	named := map[string]api.AllocCheckStatus{}
	for _, s := range found {
		named[s.Check] = s
	}
	return named
}

func (c *consulRun) passing() bool {
	found := c.checks()
	return found["answers"].Status == "success" && found["looks"].Status == "success" &&
		found["looks"].Output == "seen by t\n"
}

// end stops an allocation, and does not wait for its shutdown_delay.
func (c *consulRun) end(p taskapiProcess) {
	c.Helper()
	_ = p.Process.Signal(syscall.SIGTERM)
	until(c.T, p, "stopping", func() bool { return strings.Contains(p.out.String(), "Stopping") })
	_ = p.Process.Signal(syscall.SIGINT) // a second one of a kind may be taken for the same
	if err := p.Wait(); err != nil {
		c.Errorf("%v\n%s", err, p.out)
	}
}

// TestConsul runs a job with services of the group and of a task, which name no provider: an agent registers and checks
// them, what it finds restarts the task, an agent that is away stops nothing, another taskapi goes on with what is
// registered, and a stop deregisters first.
func TestConsul(t *testing.T) {
	t.Parallel()
	c := newConsulRun(t)
	pid := filepath.Join(datadir.Dir(c.dir).Alloc(testAllocID), "t", "local", "pid")
	c.proxy.Away()
	first := c.start()
	until(t, first, "the task runs without the agent", func() bool { return written(pid) })
	c.proxy.Back()
	until(t, first, "registered when the agent is back", c.registered(testAllocID))
	until(t, first, "both checks pass", c.passing)
	until(t, first, "both checks pass at the agent", func() bool { // which learns of it after taskapi
		for id, check := range must.Get(c.agent.Checks())(t) {
			if !strings.Contains(check.ServiceID, testAllocID) {
				continue
			}
			if !strings.HasPrefix(id, "_nomad-check-") {
				t.Fatalf("check %s is %s: %s", id, check.Status, check.Output)
			}
			if check.Status != capi.HealthPassing {
				return false
			}
		}
		return true
	})

	// What the agent finds restarts the task, and services that begin again have results of their own.
	old := must.Read(t, pid)
	c.bad.Store(true)
	until(t, first, "restarted", func() bool {
		return strings.Contains(first.out.String(), `healthcheck: check "answers" unhealthy`)
	})
	c.bad.Store(false)
	until(t, first, "another process", func() bool {
		now, err := os.ReadFile(pid)
		return err == nil && len(now) > 0 && !bytes.Equal(now, old)
	})
	until(t, first, "both pass again", c.passing)
	until(t, first, "registered again", c.registered(testAllocID)) // and not still, as before the restart

	// A kill and an agent that is away, at once: nothing of the task ends, and nothing leaves Consul.
	before := must.Read(t, pid)
	c.proxy.Away()
	_ = first.Process.Kill()
	_ = first.Wait() // killed
	if !c.registered(testAllocID)() {
		t.Fatalf("after a kill: %v", c.services(testAllocID))
	}
	second := c.start()
	until(t, second, "resumed", func() bool { return strings.Contains(second.out.String(), "Resuming") })
	c.proxy.Back()
	until(t, second, "both pass under the next taskapi", func() bool {
		if !c.registered(testAllocID)() {
			t.Fatalf("a gap: %v", c.services(testAllocID))
		}
		return c.passing()
	})
	if after, err := os.ReadFile(pid); err != nil || string(after) != string(before) || !alive(after) {
		t.Errorf("the process is %q, was %q (%v)", after, before, err)
	}

	// A stop deregisters the group's service before it waits for the group's shutdown_delay, here of an hour, and the
	// task's as it ends the task.
	_ = second.Process.Signal(syscall.SIGTERM)
	until(t, second, "deregistered", func() bool { return slices.Equal(c.services(testAllocID), []string{"worker"}) })
	if !alive(before) {
		t.Error("the task has not been given the group's shutdown_delay")
	}
	c.end(second)
	if got := c.services(testAllocID); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// TestConsulAfterACrash: what is left of an allocation that was killed whole goes with the next one of its data
// directory; what runs without a taskapi stays.
func TestConsulAfterACrash(t *testing.T) {
	t.Parallel()
	const other, third = "215ef685-6b9e-3eaf-e74b-6b04f094ebca", "315ef685-6b9e-3eaf-e74b-6b04f094ebca"
	c := newConsulRun(t)
	alone := c.start("-alloc-id", other)
	until(t, alone, "registered", c.registered(other))
	_ = alone.Process.Kill()
	_ = alone.Wait() // killed
	crashed := c.start()
	until(t, crashed, "registered", c.registered(testAllocID))
	_ = crashed.Process.Kill()
	_ = crashed.Wait() // killed
	for pid := range belongingTo(datadir.Dir(c.dir).Alloc(testAllocID)) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	if !c.registered(testAllocID)() {
		t.Fatalf("left by the crash: %v", c.services(testAllocID))
	}
	next := c.start("-alloc-id", third)
	until(t, next, "cleaned up", func() bool { return len(c.services(testAllocID)) == 0 })
	until(t, next, "registered", c.registered(third))
	if !c.registered(other)() {
		t.Errorf("of the allocation that runs: %v", c.services(other))
	}
	c.end(next)
	again := c.start("-alloc-id", other)
	until(t, again, "resumed", func() bool { return strings.Contains(again.out.String(), "Resuming") })
	c.end(again)
	if got := fmt.Sprint(c.services(other), c.services(third)); got != "[] []" {
		t.Errorf("left: %s", got)
	}
}

// TestTemplatesOfConsul: a task waits for a key of Consul, and follows it and a service, also a change while taskapi is
// away. A token that may not read the key fails the task.
func TestTemplatesOfConsul(t *testing.T) {
	t.Parallel()
	c := newConsulRun(t)
	key := "taskapi-test/" + filepath.Base(c.dir)
	t.Cleanup(func() { _, _ = c.keys.DeleteTree(key, nil) })
	job := strings.ReplaceAll(templatesJob, `{{- with nomadVar "nomad/jobs/templates" }}{{ .colour }}{{ end -}}`,
		`{{- key "`+key+`" }}{{ range service "`+filepath.Base(c.dir)+`|any" }} at {{ .Port }}{{ end -}}`)
	c.file = jobFile(t, "variable \"web\" {}\n"+job)
	put := func(value string) {
		t.Helper()
		must.Get(c.keys.Put(&capi.KVPair{Key: key, Value: []byte(value)}, nil))(t)
	}
	said := func() string {
		text, _ := os.ReadFile(filepath.Join(datadir.Dir(c.dir).Alloc(testAllocID), "main", "local", "said"))
		return string(text)
	}
	p := c.start()
	until(t, p, "the task waits", func() bool { return strings.Contains(p.out.String(), "Missing: kv.block("+key+")") })
	put("blue")
	want := "up blue MAIN\n"
	until(t, p, "the task runs", func() bool { return said() == want })
	must.OK(t, c.agent.ServiceRegister(&capi.AgentServiceRegistration{ID: key, Name: filepath.Base(c.dir), Port: 99}))
	t.Cleanup(func() { _ = c.agent.ServiceDeregister(key) })
	want += "hup blue at 99 MAIN\n"
	until(t, p, "the service is seen", func() bool { return said() == want })
	c.proxy.Away()
	put("green")
	c.proxy.Back()
	want += "hup green at 99 MAIN\n"
	until(t, p, "the agent is back", func() bool { return said() == want })
	kill(t, p)
	put("red")
	p = c.start()
	want += "hup red at 99 MAIN\n"
	until(t, p, "the change meanwhile is seen", func() bool { return strings.HasSuffix(said(), "red at 99 MAIN\n") })
	if said() != want {
		t.Errorf("it said %q, want %q", said(), want)
	}
	must.OK(t, p.Process.Signal(os.Interrupt))
	_ = p.Wait()
}
