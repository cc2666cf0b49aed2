package taskenv

import (
	"cmp"
	"maps"
	"net"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/proc"
	"taskapi/internal/ptr"
)

// addBase adds the variables that a login sets.
func addBase(vars map[string]string, u interfaces.User) {
	vars["PATH"] = DefaultPath
	vars["HOME"] = cmp.Or(u.Home, "/")
	vars["SHELL"] = cmp.Or(u.Shell, defaultShell)
	set(vars, "USER", u.Name)
	set(vars, "LOGNAME", u.Name)
}

// addFacts adds the NOMAD_* variables but meta.
func addFacts(vars map[string]string, cfg Config) {
	addAllocation(vars, cfg.Alloc, cfg.Node.Datacenter)
	set(vars, "NOMAD_ALLOC_DIR", cfg.Dir.SharedDir)
	set(vars, "NOMAD_TASK_DIR", cfg.Dir.LocalDir)
	set(vars, "NOMAD_SECRETS_DIR", cfg.Dir.SecretsDir)
	if cfg.Task != nil {
		vars["NOMAD_TASK_NAME"] = cfg.Task.Name
		addLimits(vars, cfg.Alloc, cfg.Task)
		set(vars, "NOMAD_PARENT_CGROUP", cfg.Node.CgroupParent)
	}
	for _, p := range cfg.Ports {
		if task, label, ok := strings.Cut(p.Label, "/"); ok {
			addTaskPort(vars, p, label, cfg.Task != nil && cfg.Task.Name == task)
		} else {
			addPort(vars, p)
		}
	}
}

func addAllocation(vars map[string]string, alloc *api.Allocation, datacenter string) {
	vars["NOMAD_ALLOC_ID"] = alloc.ID
	vars["NOMAD_SHORT_ALLOC_ID"] = alloc.ID[:min(8, len(alloc.ID))]
	vars["NOMAD_ALLOC_NAME"] = alloc.Name
	vars["NOMAD_ALLOC_INDEX"] = allocIndex(alloc.Name)
	vars["NOMAD_GROUP_NAME"] = alloc.TaskGroup
	vars["NOMAD_DC"] = datacenter
	job := cmp.Or(alloc.Job, &api.Job{})
	vars["NOMAD_JOB_ID"] = cmp.Or(ptr.Deref(job.ID), alloc.JobID)
	vars["NOMAD_JOB_NAME"] = cmp.Or(ptr.Deref(job.Name), vars["NOMAD_JOB_ID"])
	vars["NOMAD_NAMESPACE"] = cmp.Or(alloc.Namespace, ptr.Deref(job.Namespace), api.DefaultNamespace)
	vars["NOMAD_REGION"] = cmp.Or(ptr.Deref(job.Region), api.GlobalRegion)
	set(vars, "NOMAD_JOB_PARENT_ID", ptr.Deref(job.ParentID))
}

// allocIndex returns the number in brackets at the end of an allocation's name; 0 without one.
func allocIndex(name string) string {
	if i := strings.LastIndexByte(name, '['); i >= 0 && strings.HasSuffix(name, "]") {
		return name[i+1 : len(name)-1]
	}
	return "0"
}

// addLimits adds the task's resources: CPU in MHz, memory in MiB. NOMAD_CPU_CORES is a blank for a task without cores,
// as Nomad sets it.
func addLimits(vars map[string]string, alloc *api.Allocation, task *api.Task) {
	vars["NOMAD_CPU_CORES"] = cmp.Or(interfaces.CPUs(alloc, task.Name), " ")
	r := task.Resources
	if r == nil {
		return
	}
	if r.CPU != nil || ptr.Deref(r.Cores) > 0 {
		vars["NOMAD_CPU_LIMIT"] = strconv.Itoa(CPU(r))
	}
	setInt(vars, "NOMAD_MEMORY_LIMIT", r.MemoryMB)
	if ptr.Deref(r.MemoryMaxMB) > 0 {
		setInt(vars, "NOMAD_MEMORY_MAX_LIMIT", r.MemoryMaxMB)
	}
}

// CPU returns the CPU of resources, in MHz: for cores, all that they have.
func CPU(r *api.Resources) int {
	if cores := ptr.Deref(r.Cores); cores > 0 {
		return int(float64(cores) * proc.Megahertz())
	}
	return ptr.Deref(r.CPU)
}

// addPort adds a port's variables. A hyphen in a label becomes an underscore. Three of the variables also exist with
// the hyphen, because Nomad keeps it in them.
func addPort(vars map[string]string, p api.PortMapping) {
	inner, host := strconv.Itoa(p.Value), strconv.Itoa(p.Value)
	if p.To > 0 {
		inner = strconv.Itoa(p.To)
	}
	addr := net.JoinHostPort(p.HostIP, host)
	for prefix, value := range map[string]string{
		"NOMAD_PORT_": inner, "NOMAD_HOST_PORT_": host,
		"NOMAD_IP_": p.HostIP, "NOMAD_ADDR_": addr,
	} {
		vars[cleanName(prefix+p.Label)] = value
	}
	for prefix, value := range map[string]string{
		"NOMAD_ALLOC_PORT_": inner, "NOMAD_HOST_IP_": p.HostIP, "NOMAD_HOST_ADDR_": addr,
	} {
		vars[prefix+p.Label] = value
		vars[cleanName(prefix+p.Label)] = value
	}
}

// addTaskPort adds the variables of a port of a task's own network. Nomad doesn't map such a port. The other tasks have
// the task's name in those variables, and no NOMAD_HOST_PORT_.
func addTaskPort(vars map[string]string, p api.PortMapping, label string, own bool) {
	port := strconv.Itoa(p.Value)
	if own {
		p.Label = label
		vars[cleanName("NOMAD_HOST_PORT_"+label)] = port
		if strings.Contains(p.HostIP, ":") {
			vars["NOMAD_IPv6_"+label] = p.HostIP
		} else {
			vars["NOMAD_IPv4_"+label] = p.HostIP
		}
	}
	vars[cleanName("NOMAD_PORT_"+p.Label)] = port
	vars[cleanName("NOMAD_IP_"+p.Label)] = p.HostIP
	vars[cleanName("NOMAD_ADDR_"+p.Label)] = net.JoinHostPort(p.HostIP, port)
}

// mergedMeta returns the meta of the job, with the group's and the task's on top.
func mergedMeta(alloc *api.Allocation, task *api.Task) map[string]string {
	meta := map[string]string{}
	if alloc.Job != nil {
		if p := alloc.Job.ParameterizedJob; p != nil && alloc.Job.Dispatched {
			for _, key := range p.MetaOptional { // one that the dispatch leaves out is empty, as in Nomad
				meta[key] = ""
			}
		}
		maps.Copy(meta, alloc.Job.Meta)
		if group := alloc.GetTaskGroup(); group != nil {
			maps.Copy(meta, group.Meta)
		}
	}
	if task != nil {
		maps.Copy(meta, task.Meta)
	}
	return meta
}

func set(vars map[string]string, name, value string) {
	if value != "" {
		vars[name] = value
	}
}

func setInt(vars map[string]string, name string, value *int) {
	if value != nil {
		vars[name] = strconv.Itoa(*value)
	}
}
