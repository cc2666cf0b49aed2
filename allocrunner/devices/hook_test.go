package devices

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/claims"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/proc"
	"taskapi/internal/same"
)

// machine is a machine with two GPUs, whose files are in dir.
func machine(dir string) []Device {
	node := func(name string) Files { return Files{Nodes: []string{filepath.Join(dir, name)}} }
	return []Device{{
		Name:  "nvidia/gpu/A100",
		Files: Files{Env: map[string]string{"VISIBLE": "${ids}"}, Nodes: []string{filepath.Join(dir, "ctl") + ":/dev/ctl:r"}},
		Instances: []Instance{{ID: "GPU-0", Files: node("0")},
			{ID: "GPU-1", Files: Files{Env: map[string]string{"MINOR": "1"}, Nodes: node("1").Nodes}}},
	}}
}

func files(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range names {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	return dir
}

// allocation returns an allocation with a task that wants some GPUs and some cores.
func allocation(id string, gpus, cores int) *api.Allocation {
	r := &api.Resources{Cores: &cores}
	if gpus > 0 {
		r.Devices = []*api.RequestedDevice{{Name: "gpu", Count: new(uint64(gpus))}}
	}
	name := "g"
	group := &api.TaskGroup{Name: &name, Tasks: []*api.Task{
		{Name: "plain"}, {Name: "t", Driver: "raw_exec", Resources: r},
	}}
	return &api.Allocation{ID: id, TaskGroup: name, Job: &api.Job{TaskGroups: []*api.TaskGroup{group}}}
}

type env struct {
	t       *testing.T
	table   claims.Table
	devices []Device
}

func newEnv(t *testing.T) env {
	return env{t, claims.Table{Dir: filepath.Join(t.TempDir(), "claims")}, machine(files(t, "ctl", "0", "1"))}
}

// begin runs the prerun hook of an allocation and gives it what that has reserved.
func (e env) begin(alloc *api.Allocation, restored bool) (*Hook, *claims.Hook, error) {
	owner := claims.NewHook(e.table, alloc.ID)
	e.t.Cleanup(owner.Shutdown)
	h := New(Config{Devices: e.devices, Claims: owner.Holder, Describe: func(id string) string { return "<" + id + ">" },
		Drivers: builtin.Drivers, Logger: slog.New(slog.DiscardHandler)})
	e.t.Cleanup(h.Shutdown)
	var given interfaces.HookResources
	err := h.Prerun(e.t.Context(), &interfaces.RunnerPrerunRequest{Alloc: alloc, Resources: &given, Restored: restored})
	if err == nil {
		alloc.AllocatedResources = &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{}}
		for task, devices := range given.Allocated {
			alloc.AllocatedResources.Tasks[task] = &api.AllocatedTaskResources{Devices: devices}
		}
	}
	return h, owner, err
}

func has(alloc *api.Allocation) (ids []string) {
	if r := alloc.AllocatedResources; r != nil && r.Tasks["t"] != nil {
		for _, d := range r.Tasks["t"].Devices {
			ids = append(ids, d.DeviceIDs...)
		}
	}
	return ids
}

// TestReservations hold until the allocation ends, and over its processes.
func TestReservations(t *testing.T) {
	e := newEnv(t)
	one, two := allocation("one", 1, 0), allocation("two", 2, 0)
	_, first, err := e.begin(one, false)
	if err != nil || !slices.Equal(has(one), []string{"GPU-0"}) {
		t.Fatalf("%v, %v", has(one), err)
	}
	_, owner, err := e.begin(two, false)
	same.Says(t, ErrTaken, "GPU-0 is held by allocation <one>", err)
	owner.Shutdown()
	if got := Problems("two", two.GetTaskGroup(), e.devices, e.table, func(id string) string { return id }); !errors.Is(
		got["t"], ErrTaken) {
		t.Errorf("got %v, want ErrTaken", got)
	}
	if got := Problems("one", one.GetTaskGroup(), e.devices, e.table, func(id string) string { return id }); len(got) > 0 {
		t.Errorf("got %v about what it has itself", got)
	}
	first.Shutdown() // its process and its keeper are gone, and nobody needed the GPU
	other := allocation("other", 1, 0)
	if _, _, err := e.begin(other, false); err != nil || !slices.Equal(has(other), []string{"GPU-0"}) {
		t.Fatalf("%v, %v", has(other), err)
	}
	if _, first, err = e.begin(one, true); err != nil || !slices.Equal(has(one), []string{"GPU-1"}) {
		t.Fatalf("%v, %v: want what nobody has taken", has(one), err)
	}
	if _, again, err := e.begin(one, true); err != nil || !slices.Equal(has(one), []string{"GPU-1"}) {
		t.Fatalf("%v, %v: want what it had", has(one), err)
	} else {
		again.Shutdown()
	}
	must.OK(t, first.Postrun(t.Context()))
	last := allocation("last", 1, 0)
	if _, _, err := e.begin(last, false); err != nil || !slices.Equal(has(last), []string{"GPU-1"}) {
		t.Fatalf("%v, %v", has(last), err)
	}
}

// TestRace: allocations that begin together never get the same device, and one that gets too little gets nothing.
func TestRace(t *testing.T) {
	e := newEnv(t)
	var wg sync.WaitGroup
	allocs := make([]*api.Allocation, 8)
	for i := range allocs {
		allocs[i] = allocation(string(rune('a'+i)), 1+i%2, 0)
		wg.Go(func() { _, _, _ = e.begin(allocs[i], false) })
	}
	wg.Wait()
	var all []string
	for _, a := range allocs {
		all = append(all, has(a)...)
	}
	slices.Sort(all)
	same.As(t, []string{"GPU-0", "GPU-1"}, all, "given")
}

// TestCores are given as long as there are any.
func TestCores(t *testing.T) {
	e := newEnv(t)
	count := len(proc.CPUs())
	all, more := allocation("all", 0, count), allocation("more", 0, 1)
	if _, _, err := e.begin(all, false); err != nil || len(has(all)) != count {
		t.Fatalf("%v, %v", has(all), err)
	}
	if list := interfaces.CPUs(all, "t"); count > 1 && !strings.Contains(list, "-") && !strings.Contains(list, ",") {
		t.Errorf("%d cores as %q", count, list)
	}
	if _, _, err := e.begin(more, false); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "<all>") {
		t.Errorf("got %v, want ErrTaken", err)
	}
	if _, _, err := e.begin(allocation("many", 0, count+1), false); err == nil || errors.Is(err, ErrTaken) {
		t.Errorf("got %v, want that there are not so many", err)
	}
}

// TestLacks: what the machine never has is an error of its own.
func TestLacks(t *testing.T) {
	e := newEnv(t)
	if _, _, err := e.begin(allocation("a", 3, 0), false); err == nil || errors.Is(err, ErrTaken) ||
		!strings.Contains(err.Error(), "it offers nvidia/gpu/A100 (2)") {
		t.Errorf("got %v", err)
	}
	must.OK(t, os.Remove(strings.Split(e.devices[0].Instances[1].Nodes[0], ":")[0]))
	if _, _, err := e.begin(allocation("a", 2, 0), false); !errors.Is(err, ErrTaken) ||
		!strings.Contains(err.Error(), "GPU-1 lacks ") {
		t.Errorf("got %v", err)
	}
	nodes := NodeResources(e.devices)
	if got := nodes[0].Instances; !got[0].Healthy || got[1].Healthy || got[1].HealthDescription == "" {
		t.Errorf("%+v, %+v", got[0], got[1])
	}
	e.devices = nil
	if _, _, err := e.begin(allocation("a", 1, 0), false); err == nil || !strings.Contains(err.Error(), "no devices") {
		t.Errorf("got %v", err)
	}
}

// process hears the events of a task.
type process struct {
	interfaces.TaskLifecycle
	events chan string
}

func (p process) Event(_, message string) { p.events <- message }

func (p process) await(t *testing.T, text string) {
	t.Helper()
	select {
	case got := <-p.events:
		if !strings.Contains(got, text) {
			t.Errorf("got the event %q, want %q", got, text)
		}
	case <-time.After(polltest.Deadline()):
		t.Fatalf("no event: want %q", text)
	}
}

// TestTaskGetsItsDevices: their variables, and an event when a file goes and comes back.
func TestTaskGetsItsDevices(t *testing.T) {
	e := newEnv(t)
	alloc := allocation("a", 2, 0)
	h, _, err := e.begin(alloc, false)
	must.OK(t, err)
	if h.TaskHook(alloc.GetTaskGroup().Tasks[0]) != nil {
		t.Error("a task without devices has a hook")
	}
	task := alloc.GetTaskGroup().Tasks[1]
	hook := h.TaskHook(task).(interfaces.TaskPrestartHook)
	p := process{events: make(chan string, 10)}
	response := must.Get(hook.Prestart(context.Background(), &interfaces.TaskPrestartRequest{Alloc: alloc, Task: task,
		Lifecycle: p}))(t)
	want := &interfaces.TaskPrestartResponse{Env: map[string]string{"VISIBLE": "GPU-0,GPU-1", "MINOR": "1"}}
	same.As(t, want, response)
	_, nodes, _ := given(e.devices, alloc.AllocatedResources.Tasks["t"].Devices)
	if len(nodes) != 3 || nodes[0].TaskPath != "/dev/ctl" || nodes[0].Permissions != "r" || nodes[1].Permissions != "rw" {
		t.Errorf("%+v", nodes)
	}
	path := nodes[2].HostPath
	must.OK(t, os.Remove(path))
	p.await(t, path+" does not exist")
	must.OK(t, os.WriteFile(path, nil, 0o600))
	p.await(t, path+" exists again")
	if _, err := hook.Prestart(context.Background(), &interfaces.TaskPrestartRequest{Alloc: alloc, Task: task,
		Lifecycle: p}); err != nil { // as at a restart
		t.Fatal(err)
	}
	h.Shutdown()
	if len(p.events) > 0 {
		t.Errorf("another event: %s", <-p.events)
	}
}

// passing is a driver that passes devices and mounts on.
type passing struct{ drivers.Driver }

func (passing) Capabilities() drivers.Capabilities {
	return drivers.Capabilities{Mounts: true, Devices: true}
}

// TestDriverThatPassesDevicesOn gets the files, each once, and mounts.
func TestDriverThatPassesDevicesOn(t *testing.T) {
	e := newEnv(t)
	e.devices[0].Mounts = []string{"/usr/lib/nvidia:/lib/nvidia:ro", "/var/cache"}
	alloc := allocation("a", 2, 0)
	h, _, err := e.begin(alloc, false)
	must.OK(t, err)
	raw := must.Get(builtin.Drivers.Get("raw_exec"))(t)
	h.cfg.Drivers = drivers.NewRegistry(passing{raw})
	task := alloc.GetTaskGroup().Tasks[1]
	got := must.Get(h.TaskHook(task).(interfaces.TaskPrestartHook).Prestart(t.Context(), &interfaces.TaskPrestartRequest{
		Alloc: alloc, Task: task, Lifecycle: process{events: make(chan string, 10)}}))(t)
	dir := filepath.Dir(e.devices[0].Instances[0].Nodes[0])
	want := []interfaces.Device{{HostPath: dir + "/ctl", TaskPath: "/dev/ctl", Permissions: "r"},
		{HostPath: dir + "/0", TaskPath: dir + "/0", Permissions: "rw"},
		{HostPath: dir + "/1", TaskPath: dir + "/1", Permissions: "rw"}}
	same.As(t, want, got.Devices)
	mounts := []interfaces.Mount{{HostPath: "/usr/lib/nvidia", TaskPath: "/lib/nvidia", ReadOnly: true},
		{HostPath: "/var/cache", TaskPath: "/var/cache"}}
	same.As(t, mounts, got.Mounts)
}

// TestBadDevices are refused with what is wrong.
func TestBadDevices(t *testing.T) {
	good := func() Device { return machine("/dev")[0] }
	for want, change := range map[string]func(*Device){
		"VENDOR/TYPE/NAME":  func(d *Device) { d.Name = "nvidia/gpu" },
		"VENDOR/TYPE/NAME,": func(d *Device) { d.Name = "/gpu/x" },
		"0 instances":       func(d *Device) { d.Instances = nil },
		"given twice":       func(d *Device) { d.Instances = append(d.Instances, d.Instances[0]) },
		"without commas":    func(d *Device) { d.Instances[0].ID = "a,b" },
		"ID without":        func(d *Device) { d.Instances[0].ID = "a\nb" },
		"absolute":          func(d *Device) { d.Nodes = []string{"dev/x"} },
		"r, w and m":        func(d *Device) { d.Nodes = []string{"/dev/x:/dev/y:rx"} },
		"HOST:TASK:OPTIONS": func(d *Device) { d.Nodes = []string{"/dev/x:/dev/y:r:w"} },
		":ro":               func(d *Device) { d.Mounts = []string{"/lib:/lib:x"} },
		"NOMAD_":            func(d *Device) { d.Env = map[string]string{"NOMAD_TOKEN": "x"} },
		"blanks and =":      func(d *Device) { d.Env = map[string]string{"A=B": "x"} },
		"zero byte":         func(d *Device) { d.Env = map[string]string{"A": "\x00"} },
		"attribute":         func(d *Device) { d.Attributes = map[string]string{"": "x"} },
	} {
		d := good()
		change(&d)
		same.Says(t, nil, want, Check([]Device{d}))
	}
	same.Says(t, nil, "given twice", Check([]Device{good(), good()}))
	must.OK(t, Check([]Device{good()}))
}
