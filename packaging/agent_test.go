package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// TestAgentUnit runs a job by the API of taskapi-agent.service on a machine with systemd. A restart and a crash of the
// agent go unnoticed by the task. After a reboot, and after a power cut, what ran runs again, and what was stopped does
// not.
func TestAgentUnit(t *testing.T) {
	needMachine(t, "curl")
	dir := t.TempDir()
	shared := filepath.Join(dir, "shared")
	must.OK(t, os.Mkdir(shared, 0o755))
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o",
		filepath.Join(shared, "taskapi"), "../cmd/taskapi")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, file := range []string{"systemd/taskapi-agent.service", "etc/taskapi.hcl"} {
		text := must.Read(t, file)
		must.OK(t, os.WriteFile(filepath.Join(shared, filepath.Base(file)), text, 0o600))
	}
	for _, job := range []string{"stays", "stopped"} {
		text := strings.ReplaceAll(`{"Job": {"ID": "NAME", "Name": "NAME", "Type": "service", "TaskGroups": [{"Name": "g",
			"Count": 1, "Tasks": [{"Name": "t", "Driver": "raw_exec",
			"Config": {"command": "/bin/sleep", "args": ["1000"]}}]}]}}`, "NAME", job)
		must.OK(t, os.WriteFile(filepath.Join(shared, job+".json"), []byte(text), 0o600))
	}
	m := boot(t, dir)
	m.run(`rm -rf /etc/taskapi /var/lib/taskapi*
mkdir /etc/taskapi
install /mnt/taskapi /usr/bin/taskapi
install -m 644 /mnt/taskapi.hcl /etc/taskapi/
install -m 644 /mnt/taskapi-agent.service /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now taskapi-agent`)
	ask := func(args string) string {
		t.Helper()
		return m.run(`printf 'X-Nomad-Token: %s\n' "$(cat /var/lib/taskapi/operator.token)" |
curl --fail-with-body -sS -H @- --unix-socket /var/lib/taskapi/operator.sock ` + args)
	}
	for _, job := range []string{"stays", "stopped"} {
		ask("-T /mnt/" + job + ".json localhost/v1/jobs")
	}
	ask("-X DELETE localhost/v1/job/stopped")
	tasks := func() string {
		out, _ := m.try("pgrep -f '^/bin/sleep 1000$'") // none is an exit code
		return out
	}
	m.until("one task runs, and one has ended", func() bool { return len(strings.Fields(tasks())) == 1 })
	before := tasks()
	m.run("systemctl restart taskapi-agent")
	pid := m.property("taskapi-agent", "MainPID")
	m.run("kill -KILL " + pid)
	m.until("another agent", func() bool {
		now := m.property("taskapi-agent", "MainPID")
		return now != pid && now != "0" && m.property("taskapi-agent", "SubState") == "running"
	})
	if now := tasks(); now != before {
		t.Errorf("the task is %q after a restart and a crash of the agent, and was %q", now, before)
	}
	for _, cut := range []bool{false, true} {
		m.run("sync")
		if cut {
			m.kill()
		} else {
			m.off()
		}
		m = boot(t, dir)
		m.until("the job runs after a boot", func() bool { return len(strings.Fields(tasks())) == 1 })
		if status := ask("localhost/v1/job/stopped"); !strings.Contains(status, `"Status":"dead"`) {
			t.Errorf("what was stopped is %s", status)
		}
		if status := ask("localhost/v1/job/stays"); !strings.Contains(status, `"Status":"running"`) {
			t.Errorf("what ran is %s", status)
		}
	}
}
