package allocrunner

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/ports"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/ptr"
)

// resources holds an allocation's resources of the machine while it runs. It is empty before acquire and after release.
type resources struct {
	node      api.Node
	meta      metaUse
	ports     *ports.Reservation
	pending   *supervising // nil before the supervisor is made
	users     users
	awaiting  sync.Mutex                        // held by await
	processes *keeper.Supervisor                // once it has been awaited
	measured  atomic.Pointer[keeper.Supervisor] // the same, for readers of statistics
	leases    func() []interfaces.Lease
	held      sync.Once // by the keeper, too
	freePorts sync.Once
}

// supervising is the making of a supervisor, which takes a new process.
type supervising struct {
	done       chan struct{} // closed when the fields below are set
	supervisor *keeper.Supervisor
	err        error
}

// acquire takes everything that the tasks will need. The error says what is not available.
func (r *Runner) acquire(ctx context.Context) error {
	if err := allocdir.Spread(r.cfg.Dir, taskNames(r.group())); err != nil { // its users' numbers, too
		return fmt.Errorf("sticky data: %w", err)
	}
	access, err := r.acquireUsers()
	if err != nil {
		return err
	}
	if err := allocdir.BuildAlloc(r.cfg.Dir, access, taskNames(r.group())); err != nil {
		return fmt.Errorf("allocation directory: %w", err)
	}
	if r.resources.users.taken && !r.resources.users.written { // a full disk would refuse to make what exists already
		if err := r.resources.users.Save(r.cfg.Dir); err != nil {
			return err
		}
	}
	if r.cfg.Saved == nil { // a running task has its user already
		if err := r.checkUsers(); err != nil {
			return err
		}
	}
	handed := keeper.TakeHanded(r.cfg.Dir)
	pending := &supervising{done: make(chan struct{})}
	go func() {
		defer close(pending.done)
		if pending.supervisor, pending.err = r.supervise(ctx, handed); pending.err != nil {
			handed.Close()
		}
	}()
	r.resources.pending = pending
	reservation, err := r.reservePorts(handed.Sockets())
	if err != nil {
		return fmt.Errorf("ports: %w", err)
	}
	r.resources.ports, r.resources.leases = reservation, r.cfg.Leases
	r.resources.node = r.detectNode()
	r.snapshots.Change(func(a *api.Allocation) { setResources(a, reservation) })
	return nil
}

// reservePorts takes the ports of the group and its tasks: the same ones as an earlier runner, if there was one, and
// those of the sockets that an earlier version has handed over.
func (r *Runner) reservePorts(handed []drivers.HeldSocket) (*ports.Reservation, error) {
	cfg := ports.Config{
		Networks: interfaces.Networks(r.group()),
		HostIP:   r.cfg.HostIP,
		Owner:    r.cfg.Dir,
		Left:     ProcessesLeft,
	}
	had := handedPorts(handed)
	if r.cfg.Saved != nil && r.cfg.Saved.Alloc.AllocatedResources != nil {
		had = interfaces.AllocatedPorts(r.cfg.Saved.Alloc.AllocatedResources)
	}
	reservation, err := ports.Reacquire(cfg, had)
	if err != nil {
		return nil, err
	}
	for _, warning := range reservation.Warnings() {
		r.logger.Warn("another allocation may take a port of this one", "error", warning)
	}
	return reservation, nil
}

// release gives everything back. It is safe after an acquire that failed half way.
func (res *resources) release() error {
	var errs []error
	_ = res.await() // the caller that needs it gets its error
	if res.processes != nil {
		errs = append(errs, res.processes.Close())
	}
	if res.ports != nil {
		errs = append(errs, res.ports.Close())
	}
	return errors.Join(errs...)
}

// leave gives back the resources of this process and leaves the tasks running.
func (res *resources) leave() error {
	_ = res.await()
	res.users.taken = false
	if res.processes == nil {
		return nil
	}
	processes := res.processes
	res.processes, res.pending = nil, nil
	return processes.Detach()
}

// await waits until the supervisor of the processes exists. It is safe for concurrent use until release or leave.
func (res *resources) await() error {
	res.awaiting.Lock()
	defer res.awaiting.Unlock()
	if res.pending == nil || res.processes != nil {
		return nil
	}
	<-res.pending.done
	if res.processes = res.pending.supervisor; res.processes == nil {
		return res.pending.err
	}
	res.measured.Store(res.processes)
	if res.ports != nil {
		res.held.Do(func() { res.processes.KeepOpen(res.holds) })
	}
	return nil
}

// holds returns the files that the keeper holds open while this process is away.
func (res *resources) holds() []*os.File {
	files := res.ports.Locks()
	if res.leases != nil {
		for _, lease := range res.leases() {
			files = append(files, lease.Files()...)
		}
	}
	return files
}

func (r *Runner) detectNode() api.Node {
	node := taskenv.DetectNode(r.drivers.Attributes())
	node.ID = r.cfg.Alloc.NodeID
	node.Name = r.cfg.Alloc.NodeName
	node.Datacenter = r.cfg.Datacenter
	node.NodePool = "default"
	return node
}

// env returns the environment of the allocation, built with each call: no caller keeps one for long.
func (r *Runner) env(alloc *api.Allocation) *taskenv.Env {
	node := r.resources.node
	if r.cfg.NodeMeta != nil && r.resources.meta.in(alloc.Job) {
		node.Meta = r.cfg.NodeMeta()
	}
	return taskenv.New(taskenv.Config{Alloc: alloc, Dir: allocdir.Paths(r.cfg.Dir, ""), Ports: r.ports(), Node: node})
}

// metaUse remembers whether the latest job may refer to ${meta.…}. Few jobs do, and the metadata has to be read from
// disk.
type metaUse struct {
	mu  sync.Mutex // guards the fields below
	job *api.Job
	may bool
}

// in reports whether a job may refer to ${meta.…}.
func (u *metaUse) in(job *api.Job) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.job != job {
		text, err := json.Marshal(job)
		u.job, u.may = job, err != nil || bytes.Contains(text, []byte("meta")) // names of fields are in upper case
	}
	return u.may
}

// taskEnv returns the environment that the next process of a task would get, without what hooks add. The user is not
// looked up.
func (r *Runner) taskEnv(alloc *api.Allocation, task *api.Task) *taskenv.Env {
	user := interfaces.User{Name: task.User}
	if uid := r.resources.users.Tasks[task.Name]; uid != 0 && task.User == "" {
		user.Name = strconv.FormatUint(uint64(uid), 10)
	}
	return r.env(alloc).WithTask(taskenv.Task{Task: task, User: user, Dir: allocdir.Paths(r.cfg.Dir, task.Name)})
}

// ports returns the ports of the group and its tasks, with the labels of interfaces.Networks. For a runner that is
// never run, they are the ports that were granted before.
func (r *Runner) ports() []api.PortMapping {
	if r.resources.ports != nil {
		return r.resources.ports.Mappings()
	}
	return interfaces.AllocatedPorts(r.Alloc().AllocatedResources)
}

// taskOf returns the task of that name in the allocation's group, nil for none.
func taskOf(alloc *api.Allocation, name string) *api.Task {
	for _, t := range alloc.GetTaskGroup().Tasks {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// setResources fills in the resources that a scheduler would have granted: everything in the job file, and the ports'
// numbers.
func setResources(a *api.Allocation, p *ports.Reservation) {
	g := a.GetTaskGroup()
	disk := 0
	if g.EphemeralDisk != nil {
		disk = ptr.Deref(g.EphemeralDisk.SizeMB)
	}
	a.TaskResources = map[string]*api.Resources{}
	had := a.AllocatedResources
	a.Resources = &api.Resources{CPU: new(int), MemoryMB: new(int), MemoryMaxMB: new(int), Cores: new(int),
		DiskMB: &disk}
	a.AllocatedResources = &api.AllocatedResources{
		Tasks:  map[string]*api.AllocatedTaskResources{},
		Shared: api.AllocatedSharedResources{DiskMB: int64(disk)},
	}
	for _, t := range g.Tasks {
		wanted := *cmp.Or(t.Resources, api.DefaultResources())
		a.TaskResources[t.Name] = &wanted
		cpu, memory, memoryMax := ptr.Deref(wanted.CPU), ptr.Deref(wanted.MemoryMB), ptr.Deref(wanted.MemoryMaxMB)
		*a.Resources.CPU += cpu
		*a.Resources.MemoryMB += memory
		*a.Resources.MemoryMaxMB += max(memory, memoryMax)
		*a.Resources.Cores += ptr.Deref(wanted.Cores)
		own := &api.AllocatedTaskResources{
			Cpu:    api.AllocatedCpuResources{CpuShares: int64(taskenv.CPU(&wanted))},
			Memory: api.AllocatedMemoryResources{MemoryMB: int64(memory), MemoryMaxMB: int64(memoryMax)},
		}
		if had != nil && had.Tasks[t.Name] != nil {
			own.Devices = had.Tasks[t.Name].Devices
		}
		a.AllocatedResources.Tasks[t.Name] = own
	}
	interfaces.SetNetworks(a, p.Networks())
}

// allocate adds what the prerun hooks have reserved for the tasks to the allocation's resources.
func (r *Runner) allocate() {
	if len(r.given.Allocated) == 0 {
		return
	}
	r.snapshots.Change(func(a *api.Allocation) {
		all := *a.AllocatedResources
		all.Tasks = maps.Clone(all.Tasks)
		for name, devices := range r.given.Allocated {
			if all.Tasks[name] != nil {
				own := *all.Tasks[name]
				own.Devices = devices
				all.Tasks[name] = &own
			}
		}
		a.AllocatedResources = &all
	})
}
