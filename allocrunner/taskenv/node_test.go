package taskenv_test

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"taskapi/allocrunner/taskenv"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestDetectNode(t *testing.T) {
	node := taskenv.DetectNode(map[string]string{"driver.raw_exec": "1"})
	hostname := must.Get(os.Hostname())(t)
	release := must.Get(exec.Command("uname", "-r").Output())(t)
	for key, want := range map[string]string{
		"kernel.name": "linux", "kernel.version": strings.TrimSpace(string(release)), "cpu.arch": runtime.GOARCH,
		"cpu.numcores": strconv.Itoa(runtime.NumCPU()), "unique.hostname": hostname, "driver.raw_exec": "1",
		"nomad.version": taskenv.NomadVersion,
	} {
		same.As(t, want, node.Attributes[key], "attr.", key)
	}
	if net.ParseIP(node.Attributes["unique.network.ip-address"]) == nil {
		t.Errorf("unique.network.ip-address = %q is no address", node.Attributes["unique.network.ip-address"])
	}
	if n, err := strconv.ParseUint(node.Attributes["memory.totalbytes"], 10, 64); err != nil || n < 1<<20 {
		t.Errorf("memory.totalbytes = %q", node.Attributes["memory.totalbytes"])
	}
	same.As(t, hostname, node.Name, "Name")
}
