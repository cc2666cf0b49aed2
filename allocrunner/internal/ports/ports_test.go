package ports_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/internal/ports"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func dynamic(labels ...string) []*api.NetworkResource {
	n := &api.NetworkResource{}
	for _, l := range labels {
		n.DynamicPorts = append(n.DynamicPorts, api.Port{Label: l})
	}
	return []*api.NetworkResource{n}
}

func static(label string, port int) []*api.NetworkResource {
	return []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: label, Value: port}}}}
}

func newReservation(t *testing.T, cfg ports.Config) *ports.Reservation {
	t.Helper()
	r := must.Get(ports.Allocate(cfg))(t)
	t.Cleanup(func() { r.Close() })
	return r
}

// freePort returns a port that nobody has now.
func freePort(t *testing.T) int {
	t.Helper()
	r := newReservation(t, ports.Config{Networks: dynamic("x")})
	defer r.Close()
	return r.Mappings()[0].Value
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
}

func TestAllocate(t *testing.T) {
	fixed := freePort(t)
	in := []*api.NetworkResource{{
		Mode:          "host",
		DynamicPorts:  []api.Port{{Label: "http"}, {Label: "admin-api", To: 8080}, {Label: "same", To: -1}},
		ReservedPorts: []api.Port{{Label: "fixed", Value: fixed, HostNetwork: "default"}},
	}}
	r := newReservation(t, ports.Config{Networks: in})
	got := r.Mappings()
	var values []int
	for i, want := range []api.PortMapping{
		{Label: "fixed", Value: fixed}, {Label: "http"}, {Label: "admin-api", To: 8080}, {Label: "same"},
	} {
		if want.Value == 0 {
			want.Value = got[i].Value
			if want.Value < ports.DefaultFirst || want.Value > ports.DefaultLast {
				t.Errorf("port %d is out of the range", want.Value)
			}
		}
		if want.Label == "same" {
			want.To = want.Value
		}
		want.HostIP = "127.0.0.1"
		same.As(t, want, got[i], "mapping ", i)
		values = append(values, got[i].Value)
	}
	want := []*api.NetworkResource{{
		Mode: "host", IP: "127.0.0.1",
		DynamicPorts: []api.Port{
			{Label: "http", Value: values[1], HostNetwork: "default"},
			{Label: "admin-api", Value: values[2], To: 8080, HostNetwork: "default"},
			{Label: "same", Value: values[3], To: values[3], HostNetwork: "default"},
		},
		ReservedPorts: []api.Port{{Label: "fixed", Value: fixed, HostNetwork: "default"}},
	}}
	same.As(t, want, r.Networks(), "networks")
	if in[0].DynamicPorts[0].Value != 0 || in[0].IP != "" {
		t.Error("the job's own networks were changed")
	}
}

func TestPortsAreHeldUntilTheyAreReleased(t *testing.T) {
	r := newReservation(t, ports.Config{Networks: dynamic("x")})
	port := r.Mappings()[0].Value
	addr := "127.0.0.1:" + strconv.Itoa(port)
	if l, err := listen(port); err == nil {
		l.Close()
		t.Fatal("a stranger could listen on a held port")
	}
	if l, err := net.Listen("tcp", ":"+strconv.Itoa(port)); err == nil {
		l.Close()
		t.Error("a stranger could listen on every address of a held port")
	}
	if c, err := net.ListenPacket("udp", addr); err == nil {
		c.Close()
		t.Error("a stranger could bind a held UDP port")
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("a held port answers before the task does")
	}
	r.ReleaseSockets()
	r.ReleaseSockets()
	l, err := listen(port)
	if err != nil {
		t.Fatalf("the task can't listen: %v", err)
	}
	defer l.Close()
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Fatalf("the task can't bind: %v", err)
	}
	c.Close()
}

// The port lock outlasts the sockets: a task that binds late, or never, does not lose its port to another allocation.
func TestPortsAreLockedUntilClose(t *testing.T) {
	r := newReservation(t, ports.Config{Networks: dynamic("x")})
	port := r.Mappings()[0].Value
	r.ReleaseSockets()
	_, err := ports.Allocate(ports.Config{Networks: static("y", port)})
	same.Error(t, ports.ErrTaken, err)
	_, err = ports.Allocate(ports.Config{Networks: dynamic("y"), First: port, Last: port})
	same.Error(t, ports.ErrExhausted, err)
	must.OK(t, errors.Join(r.Close(), r.Close()))
	newReservation(t, ports.Config{Networks: static("y", port)})
}

func TestStaticPortThatIsTaken(t *testing.T) {
	port := freePort(t)
	l, err := listen(port)
	must.OK(t, err)
	defer l.Close()
	_, err = ports.Allocate(ports.Config{Networks: static("web", port)})
	if !errors.Is(err, ports.ErrTaken) {
		t.Fatalf("got %v, want ErrTaken", err)
	}
	for _, part := range []string{`"web"`, strconv.Itoa(port), fmt.Sprintf("process %d (ports.test)", os.Getpid())} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %s", err, part)
		}
	}
	ignoring := static("web", port)
	ignoring[0].ReservedPorts[0].IgnoreCollision = true
	newReservation(t, ports.Config{Networks: ignoring})
	newReservation(t, ports.Config{Networks: ignoring})
}

func TestStaticUDPPortThatIsTaken(t *testing.T) {
	port := freePort(t)
	c, err := net.ListenPacket("udp", "127.0.0.1:"+strconv.Itoa(port))
	must.OK(t, err)
	defer c.Close()
	_, err = ports.Allocate(ports.Config{Networks: static("dns", port)})
	if !errors.Is(err, ports.ErrTaken) || !strings.Contains(err.Error(), "udp") ||
		!strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("got %v, want ErrTaken for udp by us", err)
	}
	newReservation(t, ports.Config{Networks: dynamic("x")}) // what was taken for the failed one is free again
}

// A task that was just stopped leaves connections in TIME_WAIT. Its static port is free all the same, and still held.
func TestStaticPortInTimeWait(t *testing.T) {
	port := freePort(t)
	l := must.Get(listen(port))(t)
	client := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	server, err := l.Accept()
	must.OK(t, err)
	server.Close() // the side that closes first is the one that waits
	client.Read(make([]byte, 1))
	client.Close()
	l.Close()
	r := newReservation(t, ports.Config{Networks: static("web", port)})
	if l, err := listen(port); err == nil {
		l.Close()
		t.Error("a stranger could listen on a held port")
	}
	r.ReleaseSockets()
	l, err = listen(port)
	if err != nil {
		t.Fatalf("the task can't listen: %v", err)
	}
	l.Close()
}

func TestExhausted(t *testing.T) {
	port := freePort(t)
	l, err := listen(port)
	must.OK(t, err)
	defer l.Close()
	_, err = ports.Allocate(ports.Config{Networks: dynamic("x"), First: port, Last: port})
	want := fmt.Sprintf(`port "x": no free port in %d to %d on 127.0.0.1`, port, port)
	if !errors.Is(err, ports.ErrExhausted) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestInvalid(t *testing.T) {
	other := dynamic("x")
	other[0].DynamicPorts[0].HostNetwork = "public"
	to := dynamic("x")
	to[0].DynamicPorts[0].To = 70000
	for name, c := range map[string]struct {
		cfg  ports.Config
		want error
		text string
	}{
		"label twice":     {ports.Config{Networks: dynamic("x", "x")}, ports.ErrInvalid, `"x" is used twice`},
		"host network":    {ports.Config{Networks: other}, ports.ErrInvalid, `"public"`},
		"to":              {ports.Config{Networks: to}, ports.ErrInvalid, "70000"},
		"static 0":        {ports.Config{Networks: static("x", 0)}, ports.ErrInvalid, "want 1 to 65535"},
		"static too high": {ports.Config{Networks: static("x", 65536)}, ports.ErrInvalid, "65536"},
		"range":           {ports.Config{First: 5, Last: 4}, ports.ErrInvalid, "5 to 4"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := ports.Allocate(c.cfg)
			if r != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, %v; want %v that says %s", r, err, c.want, c.text)
			}
		})
	}
}

// The test runs itself as another user: root may have every port.
func TestPrivilegedPort(t *testing.T) {
	if os.Getuid() != 0 {
		_, err := ports.Allocate(ports.Config{Networks: static("x", 81)})
		same.Error(t, ports.ErrPermission, err)
		return
	}
	if start, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil &&
		strings.TrimSpace(string(start)) == "0" {
		t.Skip("this machine has no privileged ports")
	}
	if out, err := asStranger(t, "-test.run=^TestPrivilegedPort$").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// asStranger is this test binary run as another user.
func asStranger(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	dir := must.ShortDir(t)
	must.OK(t, os.Chmod(dir, 0o755))
	must.Program(t, dir+"/test", must.Read(t, os.Args[0]))
	cmd := exec.Command(dir+"/test", args...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	return cmd
}

func TestReacquire(t *testing.T) {
	cfg := ports.Config{Networks: dynamic("x", "y")}
	first := newReservation(t, cfg)
	want := first.Mappings()
	first.Close()
	l, err := listen(want[0].Value) // the task, which lived on
	must.OK(t, err)
	defer l.Close()
	again := must.Get(ports.Reacquire(cfg, want))(t)
	defer again.Close()
	same.As(t, want, again.Mappings(), "other ports than before")
	second, err := ports.Reacquire(cfg, want) // a port that can't be locked again stops no running task
	if err != nil || len(second.Warnings()) != 2 || !errors.Is(errors.Join(second.Warnings()...), ports.ErrTaken) {
		t.Errorf("a second time: got %v, %v, want two warnings", second, err)
	}
	second.Close()
}

// Many that allocate at once never get the same port, and none is left without.
func TestConcurrentAllocations(t *testing.T) {
	const n = 40
	got := make(chan *ports.Reservation, n)
	for range n {
		go func() {
			r, err := ports.Allocate(ports.Config{Networks: dynamic("a", "b"), First: 21000, Last: 21200})
			if err != nil {
				t.Error(err)
			}
			got <- r
		}()
	}
	seen := map[int]bool{}
	for range n {
		r := <-got
		if r == nil {
			continue
		}
		defer r.Close()
		for _, m := range r.Mappings() {
			if seen[m.Value] {
				t.Errorf("port %d was given twice", m.Value)
			}
			seen[m.Value] = true
		}
	}
}
