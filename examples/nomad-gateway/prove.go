// Command nomad-gateway proves what docs/gateway.md promises, with a real agent of Nomad: it starts one, runs
// gateway.nomad.hcl on it, and prints what it measures. It needs root, and ends with 1 when a promise does not hold:
//
//	go run ./examples/nomad-gateway -nomad nomad -taskapi bin/taskapi
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/load"
	"taskapi/internal/peercred"
)

const agentConfig = `
data_dir  = %q
bind_addr = "127.0.0.1"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
ports {
  http = 24646
  rpc  = 24647
  serf = 24648
}
server {
  enabled          = true
  bootstrap_expect = 1
}
client {
  enabled = true
  options = { "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean" }
}
plugin "raw_exec" {
  config { enabled = true }
}
acl { enabled = true }
log_level            = "WARN"
disable_update_check = true
`

// The rights of the job's tasks. A task without isolation needs alloc-node-exec, too.
const policy = `namespace "default" {
  policy       = "write"
  capabilities = ["alloc-node-exec"]
  variables {
    path "nomad/jobs/gateway" {
      capabilities = ["read", "write", "list"]
    }
  }
}`

const address = "http://127.0.0.1:24646"

func main() {
	nomad := flag.String("nomad", "nomad", "program of Nomad")
	taskapi := flag.String("taskapi", "bin/taskapi", "program of taskapi")
	job := flag.String("job", "examples/nomad-gateway/gateway.nomad.hcl", "job file")
	flag.Parse()
	p := &proof{nomad: *nomad}
	p.taskapi, _ = filepath.Abs(*taskapi)
	defer p.end()
	p.run(*job)
}

type proof struct {
	nomad, taskapi, dir, alloc, path, token string

	agent, gateway *exec.Cmd
	agents         []int // the process groups of all agents that were started
	management     string
	failed         bool
}

// must ends the proof with an error.
func (p *proof) must(err error) {
	if err != nil {
		fmt.Println("FAILED:", err)
		p.failed = true
		p.end()
	}
}

func (p *proof) promise(holds bool, format string, args ...any) {
	word := "holds  "
	if !holds {
		word, p.failed = "BROKEN ", true
	}
	fmt.Printf(word+format+"\n", args...)
}

func (p *proof) end() {
	if p.gateway != nil {
		_ = p.gateway.Process.Kill()
		_ = p.gateway.Wait()
	}
	if p.agent != nil {
		if p.alloc != "" {
			for began := time.Now(); p.status() != "complete" && time.Since(began) < time.Minute; {
				if _, err := p.command("job", "stop", "-detach", "gateway"); err != nil { // an agent in trouble
					fmt.Println(err)
				}
				time.Sleep(time.Second)
			}
		}
		_ = p.agent.Process.Signal(syscall.SIGINT)
		_ = p.agent.Wait()
	}
	for _, pid := range p.agents { // what a killed agent has left
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	if p.dir != "" {
		mounts, _ := os.ReadFile("/proc/self/mounts") // the tasks' secrets, which an agent leaves mounted
		for line := range strings.Lines(string(mounts)) {
			if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], p.dir+"/") {
				_ = syscall.Unmount(fields[1], syscall.MNT_DETACH)
			}
		}
	}
	if p.dir != "" && !p.failed {
		_ = os.RemoveAll(p.dir)
	}
	if p.failed {
		fmt.Println("kept:", p.dir)
		os.Exit(1)
	}
	os.Exit(0)
}

func (p *proof) command(args ...string) (string, error) {
	cmd := exec.Command(p.nomad, args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+address, "NOMAD_TOKEN="+p.management)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("nomad %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// status returns the status of the job's allocation, whose ID it notes; "" for none.
func (p *proof) status() string {
	out, err := p.command("job", "allocs", "-json", "gateway")
	var allocs []struct{ ID, ClientStatus string }
	if err != nil || json.Unmarshal([]byte(out), &allocs) != nil || len(allocs) == 0 {
		return ""
	}
	p.alloc = allocs[0].ID
	return allocs[0].ClientStatus
}

// until looks again and again, and returns how long it took.
func (p *proof) until(what string, done func() bool) time.Duration {
	began := time.Now()
	for !done() {
		if time.Since(began) > time.Minute {
			p.must(fmt.Errorf("%s: not within a minute", what))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// untilStatus reads until the answer has a status; 0 stands for no answer.
func (p *proof) untilStatus(what string, c *http.Client, uri string, want int) {
	p.until(what, func() bool {
		status, _, _ := do(c, "GET", uri, p.token, "")
		return status == want
	})
}

func (p *proof) startAgent() {
	log, err := os.OpenFile(filepath.Join(p.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	p.must(err)
	defer log.Close()
	agent := exec.Command(p.nomad, "agent", "-config", filepath.Join(p.dir, "agent.hcl"))
	agent.Stdout, agent.Stderr = log, log
	agent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.must(agent.Start())
	p.agent = agent
	p.agents = append(p.agents, agent.Process.Pid)
}

// client returns a client on a socket.
func client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 300,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
}

func do(c *http.Client, method, uri, token, body string) (status int, header http.Header, text string) {
	r, err := http.NewRequest(method, "http://x"+uri, strings.NewReader(body))
	if err != nil {
		return 0, nil, err.Error()
	}
	r.Header.Set("X-Nomad-Token", token)
	response, err := c.Do(r)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, err.Error()
	}
	return response.StatusCode, response.Header, string(b)
}

// counted is a proxy in front of the agent's socket, which counts what comes.
type counted struct {
	path     string
	mu       sync.Mutex
	requests map[string]int
	bodies   map[string]int
	server   *http.Server
	to       *httputil.ReverseProxy
}

func newCounted(path, agent string) *counted {
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "x"})
	to.Transport, to.FlushInterval = client(agent).Transport, -1
	to.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	return &counted{path: path, requests: map[string]int{}, bodies: map[string]int{}, to: to}
}

func (c *counted) start() error {
	_ = os.Remove(c.path)
	l, err := net.Listen("unix", c.path)
	if err == nil {
		c.server = &http.Server{Handler: c, ErrorLog: nil}
		go func() { _ = c.server.Serve(l) }()
	}
	return err
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	c.mu.Lock()
	c.requests[r.Method+" "+r.URL.Path]++
	if r.Method != http.MethodGet {
		c.bodies[string(body)]++
	}
	c.mu.Unlock()
	c.to.ServeHTTP(w, r)
}

// count returns how many requests came, without those for the keys.
func (c *counted) count(only string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for request, times := range c.requests {
		if !strings.HasSuffix(request, "jwks.json") && strings.Contains(request, only) {
			n += times
		}
	}
	return n
}

// rounds is how often the agent and the gateway are loaded, in turns.
const rounds = 8

// get returns the bytes of a read of the variable.
func get(token string) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: %s\r\n\r\n", variable, token)
}

const variable = "/v1/var/nomad/jobs/gateway"

func put(c *http.Client, token string, n int64) (int, string) {
	body := fmt.Sprintf(`{"Namespace":"default","Path":"nomad/jobs/gateway","Items":{"n":"%d"}}`, n)
	status, _, text := do(c, http.MethodPut, variable, token, body)
	return status, text
}

func (p *proof) run(job string) {
	var err error
	p.dir, err = os.MkdirTemp("", "gw")
	p.must(err)
	p.must(os.WriteFile(filepath.Join(p.dir, "agent.hcl"), fmt.Appendf(nil, agentConfig, p.dir+"/data"), 0o600))
	p.startAgent()
	version, err := exec.Command(p.nomad, "version").Output()
	p.must(err)
	fmt.Printf("%s, %s\n", strings.Split(string(version), "\n")[0], time.Now().UTC().Format(time.DateOnly))
	p.until("the cluster has a leader", func() bool {
		out, err := p.command("acl", "bootstrap", "-json")
		var token struct{ SecretID string }
		if err == nil {
			err = json.Unmarshal([]byte(out), &token)
		}
		p.management = token.SecretID
		return err == nil
	})
	p.must(os.WriteFile(filepath.Join(p.dir, "policy.hcl"), []byte(policy), 0o600))
	for _, args := range [][]string{
		{"acl", "policy", "apply", "-namespace", "default", "-job", "gateway", "gateway", p.dir + "/policy.hcl"},
		{"job", "run", "-detach", "-var", "taskapi=" + p.taskapi, job},
	} {
		_, err := p.command(args...)
		p.must(err)
	}
	p.until("the allocation runs", func() bool { return p.status() == "running" })
	p.path = filepath.Join(p.dir, "data/alloc", p.alloc)
	p.until("the task has its token", func() bool {
		b, err := os.ReadFile(p.path + "/web/secrets/nomad_token")
		p.token = string(b)
		return err == nil
	})
	direct, gateway := client(p.path+"/web/secrets/api.sock"), client(p.path+"/alloc/taskapi/web/api.sock")
	p.untilStatus("the gateway answers", gateway, "/v1/services", 200)
	p.sameAnswers(direct, gateway)
	p.sdk()
	p.throughput()
	p.must(syscall.Kill(p.gatewayTask(), syscall.SIGKILL))
	p.untilStatus("the gateway is gone", gateway, "/v1/services", 0)
	p.untilStatus("the gateway answers again", gateway, "/v1/services", 200)
	p.promise(true, "a killed gateway comes back, on the same sockets")
	p.counts()
}

// sameAnswers: the gateway says what the agent says.
func (p *proof) sameAnswers(direct, gateway *http.Client) {
	status, text := put(gateway, p.token, 0)
	p.promise(status == 200, "a change through the gateway is answered with 200 (%d)", status)
	if status != 200 {
		fmt.Println(text)
	}
	var different strings.Builder
	for _, uri := range []string{"/v1/job/gateway", "/v1/job/gateway/summary", "/v1/allocation/" + p.alloc, "/v1/jobs",
		"/v1/allocations", "/v1/services", "/v1/vars?prefix=nomad", variable, "/v1/var/none", "/v1/nodes",
		"/v1/evaluations", "/v1/agent/self", "/v1/job/none", "/v1/nothing", "/v1/jobs?pretty"} {
		var was, is string
		for range 20 { // the index of a job that has just begun goes on
			was, is = summary(do(direct, "GET", uri, p.token, "")), summary(do(gateway, "GET", uri, p.token, ""))
			if was == is {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if was != is {
			at := 0
			for at < min(len(was), len(is)) && was[at] == is[at] {
				at++
			}
			fmt.Fprintf(&different, " %s: %.60q is %.60q;", uri, was[max(0, at-20):], is[max(0, at-20):])
		}
	}
	p.promise(different.String() == "", "answers are the agent's own, with its index%s", different.String())
	worker, err := os.ReadFile(p.path + "/worker/secrets/nomad_token")
	p.must(err)
	status, _, _ = do(gateway, "GET", "/v1/services", string(worker), "")
	p.promise(status == 403, "another task's token is refused (%d)", status)
}

// summary returns an answer's status, type, index and content as one text.
func summary(status int, header http.Header, text string) string {
	var v any
	if json.Unmarshal([]byte(text), &v) == nil { // Nomad's order of keys differs from answer to answer
		if b, err := json.Marshal(v); err == nil {
			text = string(b)
		}
	}
	return fmt.Sprint(status, header.Get("Content-Type"), header.Get("X-Nomad-Index"), text)
}

// sdk: Nomad's own client works on the gateway's socket.
func (p *proof) sdk() {
	config := api.DefaultConfig()
	config.Address, config.SecretID = "unix://"+p.path+"/alloc/taskapi/web/api.sock", p.token
	c, err := api.NewClient(config)
	p.must(err)
	_, meta, err := c.Jobs().Info("gateway", nil)
	p.must(err)
	_, _, err = c.Jobs().Info("gateway", &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: 100 * time.Millisecond})
	p.must(err)
	_, _, err = c.Variables().GetVariableItems("nomad/jobs/gateway", nil)
	p.must(err)
	_, _, err = c.Services().List(nil)
	p.must(err)
	var alloc *api.Allocation
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	events, err := c.EventStream().Stream(ctx, map[api.Topic][]string{api.TopicJob: {"*"}}, 0, nil)
	p.must(err)
	event := <-events
	p.must(event.Err)
	var out bytes.Buffer
	p.until("the task runs", func() bool {
		alloc, _, err = c.Allocations().Info(p.alloc, nil)
		return err == nil && alloc.TaskStates["web"] != nil && alloc.TaskStates["web"].State == "running"
	})
	code, err := c.Allocations().Exec(ctx, alloc, "web", false, []string{"/bin/sh", "-c", "cat; exit 7"},
		strings.NewReader("typed"), &out, io.Discard, nil, nil)
	p.promise(err == nil && code == 7 && out.String() == "typed",
		"the SDK reads, waits, follows events and runs a command (exit %d, %q, %v)", code, out.String(), err)
	var audit []byte
	p.until("the audit log has the command", func() bool { // once its connection is closed
		audit, err = os.ReadFile(p.path + "/gateway/local/audit.log")
		return err == nil && bytes.Contains(audit, []byte("/exec\""))
	})
	p.promise(!bytes.Contains(audit, []byte(p.token)), "the audit log has the command, and no token")
}

// throughput compares reads of the variable on eight connections, in turns. The client sends prepared bytes, and reads
// no more of an answer than its length, so that the servers are measured. Processor times say how much an answer costs
// on a busy machine, too.
func (p *proof) throughput() {
	servers := []int{p.agent.Process.Pid, p.gatewayTask()}
	cpu := func(pids ...int) (used time.Duration) {
		for _, pid := range pids {
			used += load.CPUTime(pid)
		}
		return used
	}
	sockets := [...]string{p.path + "/web/secrets/api.sock", p.path + "/alloc/taskapi/web/api.sock"}
	var answers, ours, all [2]float64
	for range rounds {
		for i, socket := range sockets {
			before, own := cpu(servers...), cpu(os.Getpid())
			result, err := load.Run(context.Background(), load.Config{
				Socket: socket, Connections: 8, Requests: [][]byte{get(p.token)}, For: time.Second,
			})
			p.must(err)
			used := cpu(servers...) - before
			answers[i] += float64(result.Replies)
			ours[i] += float64(used)
			all[i] += float64(used + cpu(os.Getpid()) - own)
		}
	}
	fmt.Printf("        eight callers, answers in a second: %.0f by the agent, %.0f by the gateway (x %.1f)\n",
		answers[0]/rounds, answers[1]/rounds, answers[1]/answers[0])
	compare := func(what string, used [2]float64) {
		by := func(i int) time.Duration { return time.Duration(used[i] / answers[i]).Round(100 * time.Nanosecond) }
		ratio := float64(by(0)) / float64(by(1))
		p.promise(ratio >= 10, "processor time of an answer, %s: %v by the agent, %v by the gateway (x %.1f)",
			what, by(0), by(1), ratio)
	}
	compare("agent and gateway", ours)
	compare("agent, gateway and client", all)
}

// gatewayTask returns the process of the job's gateway, which listens on its sockets.
func (p *proof) gatewayTask() int {
	conn, err := net.Dial("unix", p.path+"/alloc/taskapi/web/api.sock")
	p.must(err)
	defer conn.Close()
	peer, err := peercred.Of(conn.(*net.UnixConn))
	p.must(err)
	return int(peer.PID)
}

// counts runs another gateway with the same environment, behind which requests are counted.
func (p *proof) counts() {
	counter := newCounted(filepath.Join(p.dir, "counted.sock"), p.path+"/web/secrets/api.sock")
	p.must(counter.start())
	gateway := exec.Command(p.taskapi, "gateway", "--upstream", "unix://"+counter.path, "--dir", p.dir+"/sockets",
		"-o", "limits.waits=256", "-o", "limits.connections=512", "web")
	gateway.Env = []string{"NOMAD_REGION=global", "NOMAD_NAMESPACE=default", "NOMAD_JOB_ID=gateway",
		"NOMAD_GROUP_NAME=app", "NOMAD_ALLOC_ID=" + p.alloc, "NOMAD_SECRETS_DIR=" + p.path + "/gateway/secrets"}
	gateway.Stderr = os.Stderr
	p.must(gateway.Start())
	p.gateway = gateway
	g := client(p.dir + "/sockets/web/api.sock")
	p.untilStatus("the second gateway answers", g, "/v1/services", 200)

	// 200 readers wait for one resource.
	_, header, _ := do(g, "GET", variable, p.token, "")
	p.until("a query waits", func() bool { return counter.count("GET "+variable) >= 2 })
	before := counter.count("GET " + variable)
	index := header.Get("X-Nomad-Index")
	var readers sync.WaitGroup
	var woken atomic.Int64
	for range 200 {
		readers.Go(func() {
			if _, h, _ := do(g, "GET", variable+"?wait=60s&index="+index, p.token, ""); h.Get("X-Nomad-Index") > index {
				woken.Add(1)
			}
		})
	}
	time.Sleep(2 * time.Second) // so that all of them wait
	meanwhile := counter.count("GET "+variable) - before
	put(g, p.token, 1)
	readers.Wait()
	p.promise(woken.Load() == 200 && meanwhile <= 1,
		"200 waiting readers: %d queries at the agent while they wait, %d woken",
		meanwhile, woken.Load())

	// Bad tokens.
	p.until("the queries of the cache have ended", func() bool {
		n := counter.count("")
		time.Sleep(12 * time.Second)
		return counter.count("") == n
	})
	before = counter.count("")
	var forged [][]byte
	for i := range 10_000 {
		forged = append(forged, get(p.token[:len(p.token)-8]+fmt.Sprintf("%07dA", i)))
	}
	bad, err := load.Run(context.Background(), load.Config{
		Socket: p.dir + "/sockets/web/api.sock", Connections: 8, Requests: forged, For: 3 * time.Second, Hostile: true,
	})
	p.must(err)
	p.promise(bad.Replies > 0 && bad.Replies == bad.Statuses[403]+bad.Statuses[429] && counter.count("") == before,
		"%d bad tokens in 3 s: %d requests at the agent", bad.Replies, counter.count("")-before)

	p.killUnderLoad(g, counter)
	p.revoke(g, counter)
}

// killUnderLoad kills the agent while callers read and change.
func (p *proof) killUnderLoad(g *http.Client, counter *counted) {
	var stop atomic.Bool
	var callers sync.WaitGroup
	var stale, answered, refused, written, n atomic.Int64
	for i := range 8 {
		callers.Go(func() {
			for !stop.Load() {
				if i < 2 {
					if status, _ := put(g, p.token, 1000+n.Add(1)); status == 200 {
						written.Add(1)
					}
					continue
				}
				switch status, h, _ := do(g, "GET", variable, p.token, ""); {
				case status == 200 && h.Get("X-Nomad-LastContact") != "0":
					stale.Add(1)
				case status == 200:
					answered.Add(1)
				default:
					refused.Add(1)
				}
			}
		})
	}
	time.Sleep(2 * time.Second)
	p.must(p.agent.Process.Kill())
	_ = p.agent.Wait()
	time.Sleep(3 * time.Second)
	p.startAgent()
	was := written.Load()
	back := p.until("changes are made again", func() bool { return written.Load() > was })
	stop.Store(true)
	callers.Wait()
	twice := 0
	counter.mu.Lock()
	for _, times := range counter.bodies {
		if times > 1 {
			twice++
		}
	}
	counter.mu.Unlock()
	p.promise(twice == 0 && stale.Load() > 0,
		"agent killed under load: %d of %d changes came twice; %d reads fresh, %d with their age, %d refused; "+
			"changes again %v after the start", twice, n.Load(), answered.Load(), stale.Load(), refused.Load(),
		back.Round(time.Millisecond))
}

// revoke removes the key of the tokens while the gateway can't reach the agent.
func (p *proof) revoke(g *http.Client, counter *counted) {
	p.untilStatus("the agent answers", g, variable, 200)
	_ = counter.server.Close()
	out, err := p.command("operator", "root", "keyring", "list", "-verbose")
	p.must(err)
	_, err = p.command("operator", "root", "keyring", "rotate", "-now")
	p.must(err)
	for _, line := range strings.Split(out, "\n")[1:] { // after the titles
		if fields := strings.Fields(line); len(fields) > 0 {
			_, err = p.command("operator", "root", "keyring", "remove", "-force", fields[0])
			p.must(err)
		}
	}
	p.must(counter.start())
	var status int
	took := p.until("the token is refused", func() bool {
		status, _, _ = do(g, "GET", variable, p.token, "")
		return status == 403 || status == 503 // the gateway's own token is refused by the agent, too
	})
	p.promise(took <= time.Second, "a removed key is refused (%d) %v after the agent is back", status,
		took.Round(time.Millisecond))
}
