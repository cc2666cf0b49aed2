package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/claim"
	"taskapi/allocrunner/cluster/etcd"
	"taskapi/allocrunner/cluster/etcd/etcdtest"
	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// network is a machine with etcd, and the switch that connects other machines with it. Each is a network namespace.
// All of it ends with the processes of the test.
type network struct {
	dir string
	hub string   // the process number of its namespace
	pid []string // those of the machines: a, b and c
}

// enter returns the arguments of nsenter for the namespace of a process, and the folder to be in.
func enter(pid, dir string, command ...string) []string {
	return append([]string{"--target", pid, "--net", "--uts", "--mount", "--wd=" + dir, "--"}, command...)
}

// namespace starts a machine of the network, and returns its process number.
func (n *network) namespace(t *testing.T, name string) string {
	t.Helper()
	id := writeFile(t, filepath.Join(n.dir, name+".id"), strings.Repeat(name[:1], 32)+"\n")
	cmd := exec.Command("unshare", "--net", "--uts", "--mount", "sh", "-euc", `
		hostname "$1"
		ip link set dev lo up
		[ ! -e /etc/machine-id ] || mount --bind "$2" /etc/machine-id
		echo ready
		exec sleep 100000`, "sh", name, id)
	var said bytes.Buffer
	cmd.Stderr = &said
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if n, _ := out.Read(make([]byte, len("ready\n"))); n == 0 {
		_ = cmd.Wait()
		t.Skipf("no network namespaces here: %s", said.String())
	}
	return fmt.Sprint(cmd.Process.Pid)
}

// ip runs a command of iproute2 in a namespace.
func (n *network) ip(t *testing.T, pid string, args ...string) {
	t.Helper()
	command := exec.Command("nsenter", enter(pid, n.dir, append([]string{"ip"}, args...)...)...)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("ip %q: %v: %s", args, err, out)
	}
}

const hubAddress = "10.99.0.100"

func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	for _, program := range []string{"ip", "nsenter", "unshare", "hostname"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not installed")
		}
	}
	etcd := etcdtest.Path(t)
	n := &network{dir: shortDir(t)}
	n.hub = n.namespace(t, "hub")
	n.ip(t, n.hub, "link", "add", "name", "hub", "type", "bridge")
	n.ip(t, n.hub, "address", "add", hubAddress+"/24", "dev", "hub")
	n.ip(t, n.hub, "link", "set", "dev", "hub", "up")
	for i, name := range []string{"a", "b", "c"} {
		pid := n.namespace(t, name)
		n.pid = append(n.pid, pid)
		n.ip(t, n.hub, "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", pid)
		n.ip(t, n.hub, "link", "set", "dev", name, "master", "hub", "up")
		n.ip(t, pid, "address", "add", fmt.Sprintf("10.99.0.%d/24", i+1), "dev", "eth0")
		n.ip(t, pid, "link", "set", "dev", "eth0", "up")
	}
	// The test itself, which is not in the network, reaches etcd by a Unix socket.
	url, peer := "http://"+hubAddress+":2379", "http://"+hubAddress+":2380"
	cmd := exec.Command("nsenter", enter(n.hub, n.dir, etcd, "--data-dir", "etcd", "--unsafe-no-fsync",
		"--listen-client-urls", url+",unix://sock:0", "--advertise-client-urls", url, "--logger", "zap",
		"--log-level", "error", "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default="+peer)...)
	cmd.Stderr = os.Stderr
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if !polltest.Until(func() bool { return n.ask("maintenance/status", struct{}{}, nil) == nil }) {
		t.Fatal("etcd never answers")
	}
	return n
}

// ask asks etcd.
func (n *network) ask(path string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r, err := overUnix(filepath.Join(n.dir, "sock:0")).Post("http://etcd/v3/"+path, "", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers %s", r.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(r.Body).Decode(answer)
}

// keys returns how many keys etcd has with a prefix.
func (n *network) keys(t *testing.T, prefix string) int {
	t.Helper()
	end := []byte(prefix)
	end[len(end)-1]++
	var answer struct {
		Count int `json:"count,string"`
	}
	must.OK(t, n.ask("kv/range", map[string]any{"key": []byte(prefix), "range_end": end, "count_only": true}, &answer))
	return answer.Count
}

// lease writes a key that ends after a time.
func (n *network) lease(t *testing.T, key string, ttl time.Duration) {
	t.Helper()
	id := fmt.Sprint(int(ttl))
	must.OK(t, n.ask("lease/grant", map[string]any{"ID": id, "TTL": ttl.Seconds()}, nil))
	must.OK(t, n.ask("kv/put", map[string]any{"key": []byte(key), "lease": id}, nil))
}

// cut cuts a machine off, or connects it again.
func (n *network) cut(t *testing.T, name string, off bool) {
	t.Helper()
	n.ip(t, n.hub, "link", "set", "dev", name, map[bool]string{true: "down", false: "up"}[off])
}

// run starts taskapi on a machine, with a data directory of its own.
func (n *network) run(t *testing.T, machine int, job string, flags ...string) station {
	t.Helper()
	dir := filepath.Join(n.dir, fmt.Sprint(job, machine))
	must.OK(t, os.MkdirAll(dir, 0o700))
	for _, name := range []string{"taskapi.hcl", "cluster.key"} {
		writeFile(t, filepath.Join(dir, name), string(must.Read(t, filepath.Join(n.dir, "a", name))))
	}
	args := append([]string{self(t), "run", "-data-dir", dir}, flags...)
	args = append(args, filepath.Join(n.dir, job+".hcl"))
	return station{startCommandWith(t, "nsenter", nil, enter(n.pid[machine], n.dir, args...)...), dir}
}

// TestThreeMachines follows docs/fleet.md word by word on three machines, each with a network of its own, and then cuts
// one of them off.
func TestThreeMachines(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	page := strings.ReplaceAll(string(must.Read(t, "../../docs/fleet.md")), "127.0.0.1:2379", hubAddress+":2379")
	script := ""
	fence := regexp.MustCompile("(?ms)^```[a-z]+\n(?:# ([a-z.]+)\n)?(.*?)^```$")
	for _, block := range fence.FindAllStringSubmatch(page, -1) {
		if block[1] == "" {
			script = block[2]
			continue
		}
		writeFile(t, filepath.Join(n.dir, block[1]), block[2])
	}
	n.follow(t, script)
	n.isolate(t)
}

// follow runs the commands of the page. Each runs on the machine that its data directory is named for.
func (n *network) follow(t *testing.T, script string) {
	t.Helper()
	var wrapper strings.Builder
	wrapper.WriteString("#!/bin/sh\nfor arg; do case $arg in\n")
	for i, name := range []string{"a", "b", "c"} {
		fmt.Fprintf(&wrapper, "%s) exec nsenter %s \"$@\" ;;\n", name, strings.Join(enter(n.pid[i], ".", self(t)), " "))
	}
	must.OK(t, os.Mkdir(filepath.Join(n.dir, "bin"), 0o700))
	wrapper.WriteString("esac; done\nexit 2\n")
	must.Program(t, filepath.Join(n.dir, "bin", "taskapi"), []byte(wrapper.String()))
	must.OK(t, os.CopyFS(filepath.Join(n.dir, "examples"), os.DirFS("../../examples")))
	p := newProcess("sh", "-euc", script)
	p.Dir = n.dir
	p.Env = append(p.Env, "PATH="+filepath.Join(n.dir, "bin")+":"+os.Getenv("PATH"))
	must.OK(t, p.Start())
	if err := p.Wait(); err != nil {
		t.Fatalf("%v:\n%s", err, p.out)
	}
	for _, want := range []string{`"Name":"hello.hello[0]"`, `"Name":"once.g[0]"`, "once.g[0] runs on the machine b,",
		`the token with the jti "stolen"`} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("nothing says %q:\n%s", want, p.out)
		}
	}
}

// isolate cuts the first machine off from etcd and from the others, and connects it again.
func (n *network) isolate(t *testing.T) {
	t.Helper()
	beats := filepath.Join(n.dir, "beats")
	must.OK(t, os.Mkdir(beats, 0o700))
	writeFile(t, filepath.Join(n.dir, "ha.hcl"), fmt.Sprintf(standbyJob, beats))
	for _, name := range []string{"first", "last"} {
		writeFile(t, filepath.Join(n.dir, name+".hcl"), fmt.Sprintf(siteJob, name))
	}
	const site = "Task started by client"
	begin := func(machine int, says, job string, flags ...string) station {
		s := n.run(t, machine, job, flags...)
		until(t, s.taskapiProcess, says, func() bool { return strings.Contains(s.out.String(), says) })
		t.Cleanup(func() { _ = s.Process.Signal(os.Interrupt); _ = s.Wait() })
		return s
	}
	p := &pair{dir: n.dir}
	a, c := begin(0, site, "first"), begin(2, site, "last")
	p.first = begin(0, site, "ha", "--standby")
	p.second = begin(1, "standing by: ha.g[0] runs on the machine a,", "ha", "--standby")
	here, there := a.client(t), c.client(t)
	if _, _, err := here.Services().Get("site", nil); err != nil { // from here on, the process has a copy of services
		t.Error(err)
	}
	seen := func(services, allocs int) func() bool {
		return func() bool {
			list, _, err := there.Services().Get("site", nil)
			all, _, listErr := there.Allocations().List(nil)
			return errors.Join(err, listErr) == nil && len(list) == services && len(all) == allocs
		}
	}
	until(t, c.taskapiProcess, "shows both services and three allocations", seen(2, 3))

	n.cut(t, "a", true)
	// Leases that begin now, for etcd's sense of time.
	cut := time.Now()
	n.lease(t, "lease", etcd.LeaseTTL)
	n.lease(t, "early", claim.Held)
	onItsOwn(t, a)
	if n.keys(t, "early") == 0 {
		t.Error("without etcd, the answer to a write took as long as tasks are allowed to run")
	}

	var gone, ended time.Duration
	until(t, c.taskapiProcess, "is rid of the service that was cut off", func() bool {
		if gone == 0 && n.keys(t, "three/e/services/") == 1 {
			gone = time.Since(cut)
		}
		if ended == 0 && n.keys(t, "lease") == 0 {
			ended = time.Since(cut)
		}
		return gone > 0 && ended > 0
	})
	if gone > ended+time.Second {
		t.Errorf("the service went %v after the cut, and a lease of then after %v", gone, ended)
	}
	until(t, c.taskapiProcess, "shows its own service", seen(1, 2))
	p.taken(t)
	n.cut(t, "a", false)
	if err := p.first.Wait(); p.first.ProcessState.ExitCode() != 1 ||
		!strings.Contains(p.first.out.String(), claim.ErrLost.Error()) {
		t.Errorf("the machine that was cut off ends with %v:\n%s", err, p.first.out)
	}
	until(t, c.taskapiProcess, "shows both services again, and three allocations", seen(2, 3))
	until(t, a.taskapiProcess, "writes a variable again", func() bool {
		_, _, err := here.Variables().Create(&api.Variable{Path: "back", Items: api.VariableItems{"k": "v"}}, nil)
		return err == nil
	})
	for _, s := range []station{p.second, a, c} {
		s.signal(t, syscall.SIGTERM, s.Process.Pid)
		if err := s.Wait(); err != nil {
			t.Errorf("%s: %v:\n%s", s.dir, err, s.out)
		}
	}
}

// onItsOwn holds what goes on, on a machine that was cut off, and what does not.
func onItsOwn(t *testing.T, a station) {
	t.Helper()
	alloc := datadir.Dir(a.dir).Alloc(a.id())
	task := must.Get(taskOf(alloc, "t"))(t)
	if _, _, err := task.Allocations().Info(a.id(), nil); err != nil {
		t.Errorf("the task's token on its machine alone: %v", err)
	}
	services, _, err := task.Services().Get("site", nil)
	mine := func(s *api.ServiceRegistration) bool { return s.AllocID == a.id() }
	if err != nil || !slices.ContainsFunc(services, mine) {
		t.Errorf("services of a machine on its own: %v, %v", services, err)
	}
	token := readFile(t, filepath.Join(alloc, "operator.token"))
	r := must.Get(send(t.Context(), filepath.Join(alloc, "operator.sock"), token, http.MethodPut, "/v1/var/lost",
		`{"Items":{"k":"v"}}`))(t)
	defer r.Body.Close()
	if r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("a variable is written without etcd: %s, %v", r.Status, r.Header)
	}
}

// siteJob is sleepJob with a service.
var siteJob = strings.Replace(sleepJob, "task", "service {\n name = \"site\"\n provider = \"nomad\"\n }\n task", 1)
