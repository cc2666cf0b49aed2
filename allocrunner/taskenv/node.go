package taskenv

import (
	"maps"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
)

// references returns the facts about the machine by the names that stand between ${ and }.
func references(n *api.Node, region string) map[string]string {
	refs := map[string]string{
		"node.unique.id":   n.ID,
		"node.unique.name": n.Name,
		"node.datacenter":  n.Datacenter,
		"node.region":      region,
		"node.class":       n.NodeClass,
		"node.pool":        n.NodePool,
	}
	for k, v := range n.Attributes {
		refs["attr."+k] = v
	}
	for k, v := range n.Meta {
		refs["meta."+k] = v
	}
	return refs
}

// NomadVersion is the version of Nomad whose API and job files taskapi speaks.
const NomadVersion = "2.0.6"

// DetectNode reads the facts about this machine: its name, its cgroup and the attributes that a Nomad client would
// have, without those of clouds, plugins and other tools. drivers are the attributes that the task drivers add. A fact
// that can't be read is left out. The caller adds ID, datacenter, class, pool and meta.
func DetectNode(drivers map[string]string) api.Node {
	hostname, _ := os.Hostname() // an unnamed machine has an empty name
	release, _ := os.ReadFile("/etc/os-release")
	cgroup := strings.TrimPrefix(proc.Cgroups(os.Getpid())[""], "/") // the root cgroup is none
	n := api.Node{Name: hostname, CgroupParent: cgroup, Attributes: map[string]string{
		"kernel.name":               runtime.GOOS,
		"cpu.arch":                  runtime.GOARCH,
		"cpu.numcores":              strconv.Itoa(runtime.NumCPU()),
		"nomad.service_discovery":   "true",
		"nomad.version":             NomadVersion,
		"unique.network.ip-address": outwardIP(),
	}}
	maps.Copy(n.Attributes, drivers)
	set(n.Attributes, "unique.hostname", hostname)
	set(n.Attributes, "os.name", osRelease(release, "ID"))
	set(n.Attributes, "os.version", osRelease(release, "VERSION_ID"))
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		n.Attributes["kernel.version"] = unix.ByteSliceToString(uts.Release[:])
		n.Attributes["kernel.arch"] = unix.ByteSliceToString(uts.Machine[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		n.Attributes["memory.totalbytes"] = strconv.FormatUint(info.Totalram*uint64(info.Unit), 10)
	}
	return n
}

// outwardIP returns the address from which the machine reaches others, or the loopback address. Connecting a datagram
// socket looks up the route and sends nothing. The peer is in TEST-NET-1 (RFC 5737), which has no owner.
func outwardIP() string {
	conn, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		return "127.0.0.1"
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String()
}

// osRelease returns the value of a key of os-release(5), without its quotes.
func osRelease(data []byte, key string) string {
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, key+"="); ok {
			return strings.Trim(strings.TrimSpace(v), `"'`)
		}
	}
	return ""
}
