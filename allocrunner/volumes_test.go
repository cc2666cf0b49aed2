package allocrunner_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/claims"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/volumes"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// volumed gives an allocation the machine's volume data, as its volume v.
func volumed(dir string, mounts bool, edit func(*volumes.Volume, *api.VolumeRequest),
) func(*api.TaskGroup, *interfaces.Config) {
	return func(g *api.TaskGroup, c *interfaces.Config) {
		v := volumes.Volume{Name: "data", Path: dir}
		request := &api.VolumeRequest{Name: "v", Type: "host", Source: "data"}
		if edit != nil {
			edit(&v, request)
		}
		g.Volumes = map[string]*api.VolumeRequest{"v": request}
		dataDir := filepath.Join(filepath.Dir(dir), "taskapi")
		held := claims.NewHook(claims.Table{Dir: filepath.Join(dataDir, "claims")}, c.Alloc.ID)
		hook := volumes.New(volumes.Config{Machine: []volumes.Volume{v}, DataDir: dataDir, Holder: held.Holder,
			Describe: func(id string) string { return "job.g[0], " + id }, Mounts: func(string) bool { return mounts },
			Logger: slog.New(slog.DiscardHandler)})
		c.Hooks = []interfaces.RunnerHook{held, hook}
		c.TaskHooks = func(_ *api.Allocation, task *api.Task) []interfaces.TaskHook {
			return []interfaces.TaskHook{hook.Task(task)}
		}
		c.Leases = func() []interfaces.Lease { return []interfaces.Lease{held} }
	}
}

// mountedAt mounts the volume v.
func mountedAt(destination string) func(*api.Task) {
	return func(t *api.Task) {
		t.VolumeMounts = append(t.VolumeMounts, &api.VolumeMount{Volume: new("v"), Destination: &destination})
	}
}

// volumeDir returns a directory that every user can reach, beside which a data directory can be.
func volumeDir(t *testing.T) string {
	t.Helper()
	top := must.ShortDir(t)
	dir := filepath.Join(top, "data")
	must.OK(t, errors.Join(os.Chmod(top, 0o711), os.Mkdir(dir, 0o755), os.Mkdir(filepath.Join(top, "taskapi"), 0o711),
		os.WriteFile(filepath.Join(dir, "kept"), []byte("kept"), 0o644)))
	return dir
}

// TestAMountedVolume gets to a driver that mounts.
func TestAMountedVolume(t *testing.T) {
	t.Parallel()
	dir := volumeDir(t)
	driver := newMemoryDriver()
	cfg := configure(t, "service", volumed(dir, true, func(v *volumes.Volume, r *api.VolumeRequest) {
		v.ReadOnly, r.ReadOnly = true, true
	}), inMemory("main", "sleeps", mountedAt("data"), mountedAt("/srv/../other"), func(t *api.Task) {
		t.VolumeMounts[1].PropagationMode = new("host-to-task")
	}))
	r := beginWith(t, allocrunner.WithDrivers(drivers.NewRegistry(driver)), cfg)
	r.untilState("main", "running")
	want := []interfaces.Mount{{HostPath: dir, TaskPath: "/data", ReadOnly: true, Propagation: "private"},
		{HostPath: dir, TaskPath: "/other", ReadOnly: true, Propagation: "host-to-task"}}
	same.As(t, want, driver.givenTo(t).Mounts)
	if links, _ := filepath.Glob(r.dir + "/main/*a*"); len(links) != 2 { // local and private
		t.Errorf("there are links: %v", links)
	}
}

// TestALinkedVolume is a link at each start, whatever the task makes of it, and nothing in the volume goes with the
// allocation.
func TestALinkedVolume(t *testing.T) {
	t.Parallel()
	dir := volumeDir(t)
	r := runWith(t, "service", volumed(dir, false, nil), shell("main", `
		echo up >> srv/data/starts; ln -sfn /etc srv/data; exec sleep 1000`, mountedAt("/srv/data")))
	starts := func(n int) {
		t.Helper()
		started := func() bool {
			text, _ := os.ReadFile(filepath.Join(dir, "starts"))
			at, _ := os.Readlink(r.dir + "/main/srv/data")
			return strings.Count(string(text), "up") == n && at == "/etc"
		}
		if !polltest.Until(started) {
			t.Fatalf("not %d starts in the volume; events: %v", n, r.seen())
		}
	}
	starts(1)
	r.untilState("main", "running")
	must.OK(t, r.runner.RestartTask(t.Context(), "main"))
	starts(2)
	same.Error(t, interfaces.ErrPathEscapes, same.Err(r.runner.Files(nil).List("main/srv/data", 1<<20)), "listed")
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, r.end())
	must.OK(t, r.runner.Destroy(t.Context()))
	if text, err := os.ReadFile(filepath.Join(dir, "kept")); string(text) != "kept" {
		t.Errorf("the volume has lost a file: %v", err)
	}
}

// TestWhatIsInTheWayOfALink stays, and the event says what to do.
func TestWhatIsInTheWayOfALink(t *testing.T) {
	t.Parallel()
	dir := volumeDir(t)
	r := runWith(t, "batch", volumed(dir, false, nil),
		shell("init", "mkdir -p $NOMAD_ALLOC_DIR/../main/data; exit 0", lifecycle("prestart", false)),
		shell("main", "exit 0", mountedAt("data")))
	_ = r.end()
	events := r.runner.Alloc().TaskStates["main"].Events
	var said strings.Builder
	for _, e := range events {
		said.WriteString(e.DisplayMessage + "\n")
	}
	if os.Geteuid() == 0 && !strings.Contains(said.String(), "main/data: is in the way of a link; remove it") {
		t.Errorf("events:\n%s", said.String())
	}
}

// TestAVolumeThatIsClosedToTheUser fails the task, and names the directory; for one that the user can only read there
// is an event.
func TestAVolumeThatIsClosedToTheUser(t *testing.T) {
	proctest.NeedRoot(t)
	t.Parallel()
	for mode, want := range map[os.FileMode]string{
		0o700: `volume_mount "v": user "nobody" can't use the host volume "data": enter `,
		0o755: `user "nobody" can only read the host volume "data": write to `,
	} {
		dir := volumeDir(t)
		must.OK(t, os.Chmod(dir, mode))
		r := runWith(t, "batch", func(g *api.TaskGroup, c *interfaces.Config) {
			c.Dir = filepath.Join(filepath.Dir(dir), "taskapi/allocs/a") // which the user can reach
			volumed(dir, false, nil)(g, c)
		}, shell("main", "exit 0", mountedAt("data"), func(t *api.Task) { t.User = "nobody" }))
		err := r.end()
		var said strings.Builder
		for _, e := range r.runner.Alloc().TaskStates["main"].Events {
			said.WriteString(e.DisplayMessage + "\n")
		}
		if !strings.Contains(said.String(), want+dir+": permission denied") || (err != nil) != (mode == 0o700) {
			t.Errorf("%o: %v, events:\n%s", mode, err, said.String())
		}
	}
}

// TestOneWriter has the volume until its end, and through a resumption; a reader does not mind.
func TestOneWriter(t *testing.T) {
	t.Parallel()
	dir := volumeDir(t)
	writer := configure(t, "service", volumed(dir, false, func(_ *volumes.Volume, r *api.VolumeRequest) {
		r.AccessMode = volumes.SingleWriter
	}), shell("main", "exec sleep 1000", mountedAt("data")))
	first := begin(t, writer)
	first.untilState("main", "running")
	other := func(edit func(*volumes.Volume, *api.VolumeRequest)) error {
		t.Helper()
		cfg := configure(t, "batch", func(g *api.TaskGroup, c *interfaces.Config) {
			c.Alloc.ID = "225ef685-6b9e-3eaf-e74b-6b04f094ebca"
			volumed(dir, false, edit)(g, c)
		}, shell("main", "exit 0", mountedAt("data")))
		return begin(t, cfg).end()
	}
	refused := func() {
		t.Helper()
		want := `allocation job.g[0], ` + writer.Alloc.ID + ` has the host volume "data" until it ends, and that is the only`
		same.Says(t, nil, want, other(nil), "a second writer")
	}
	refused()
	same.Error(t, nil, other(func(_ *volumes.Volume, r *api.VolumeRequest) { r.ReadOnly = true }), "a reader")
	writer = first.leave()
	refused() // the keeper holds the claim
	next := begin(t, writer)
	next.untilState("main", "running")
	refused()
	must.OK(t, next.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, next.end())
	same.Error(t, nil, other(nil), "after the end")
}

// TestAVolumeThatIsGone at a resumption lets the task run on, and not start again.
func TestAVolumeThatIsGone(t *testing.T) {
	t.Parallel()
	dir := volumeDir(t)
	cfg := configure(t, "service", volumed(dir, false, nil), shell("main", "echo up >> data/starts; exec sleep 1000",
		mountedAt("data")))
	first := begin(t, cfg)
	first.untilState("main", "running")
	starts := func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "starts"))
		return string(text)
	}
	if !polltest.Until(func() bool { return starts() == "up\n" }) {
		t.Fatalf("starts: %q", starts())
	}
	cfg = first.leave()
	next := configure(t, "service", volumed(dir, false, func(v *volumes.Volume, _ *api.VolumeRequest) {
		v.Name = "other"
	}))
	cfg.Hooks, cfg.TaskHooks, cfg.Leases = next.Hooks, next.TaskHooks, next.Leases
	r := beginWith(t, allocrunner.WithDrivers(builtin.Drivers), cfg)
	r.untilState("main", "running")
	r.restartTask("main")
	const want = `the machine has no host volume "data"; it has: other`
	same.Says(t, nil, want, r.end())
	if starts() != "up\n" {
		t.Errorf("starts: %q", starts())
	}
}
