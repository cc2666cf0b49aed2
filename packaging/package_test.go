package packaging_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// TestPackage installs the .deb of the commit before on a machine with systemd, runs a job with each unit, upgrades to
// the present commit's, and removes it. Crashes, upgrades, and restarts whose drop-in says so go unnoticed by tasks;
// after a reboot, and after a power cut, all that ran runs again.
func TestPackage(t *testing.T) {
	needMachine(t, "dpkg", "logrotate", "git", "make")
	dir := t.TempDir()
	shared := filepath.Join(dir, "shared")
	must.OK(t, os.Mkdir(shared, 0o755))
	before := "HEAD~1"
	if exec.Command("git", "cat-file", "-e", before+":packaging/nfpm.yaml").Run() != nil {
		before = "HEAD" // a shallow clone
	}
	parts := []string{"PARTS=deb", "ARCHES=" + architecture()}
	release(t, filepath.Join(shared, "old"), append(parts, "VERSION=0.0.1", "COMMIT="+before)...)
	release(t, filepath.Join(shared, "new"), parts...)
	m := boot(t, dir)
	install := func(which string) { m.t.Helper(); m.run("dpkg --install /mnt/" + which + "/*.deb") }
	m.run("rm -rf /etc/taskapi /var/lib/taskapi* /var/log/taskapi*") // this machine's
	install("old")
	const root, user = "taskapi@hello", "taskapi-user@hello"
	for _, line := range commands(t, "systemd") {
		m.run(line)
	}
	version := func(data string) string {
		return m.run("runuser -u $(stat -c %U " + data + ") -- taskapi api /v1/agent/self --data-dir " + data +
			" | grep -o '\"taskapi\": *\"[^\"]*\"'")
	}
	for unit, who := range map[string]string{root: "[89]", user: "taskapi"} {
		if status := m.property(unit, "StatusText"); !strings.HasPrefix(status, "hello.hello[0] running, 1 of 1 tasks ") {
			t.Errorf("%s: the status is %q", unit, status)
		}
		owner := m.run("stat -c %U:%u /proc/" + task(m, unit))
		if !regexp.MustCompile("^taskapi:|^UNKNOWN:8[0-9]{4}$").MatchString(owner) || who == "taskapi" !=
			strings.HasPrefix(owner, who) {
			t.Errorf("%s: the task is %s's", unit, owner)
		}
		if out := m.run("journalctl --no-pager --unit " + unit); strings.Contains(out, "in no cgroup of its own") {
			t.Errorf("%s: a task has no cgroup\n%s", unit, out)
		}
	}
	m.run("taskapi exec hello greeter -- sh -c 'echo >/tmp/of-the-task'")
	// same runs what must not disturb a task, and checks that it has not.
	same := func(what string, do func()) {
		t.Helper()
		tasks := task(m, root) + " " + task(m, user)
		if len(strings.Fields(tasks)) != 2 {
			t.Fatalf("before %s, these tasks run: %q", what, tasks)
		}
		do()
		for _, unit := range []string{root, user} {
			m.until(unit+" is active after "+what, func() bool {
				out, _ := m.try("systemctl is-active " + unit)
				return out == "active"
			})
		}
		if now := task(m, root) + " " + task(m, user); now != tasks {
			t.Errorf("the tasks are %s after %s, and were %s", now, what, tasks)
		}
	}
	crashed := func(unit, pid string) func() bool {
		return func() bool { now := m.property(unit, "MainPID"); return now != pid && now != "0" }
	}

	same("a crash", func() {
		pid := m.property(root, "MainPID")
		m.run("kill -KILL " + pid)
		m.until("another taskapi", crashed(root, pid))
	})
	same("a hang", func() {
		const soon = "/run/systemd/system/" + user + ".service.d"
		m.run("mkdir -p " + soon + "; printf '[Service]\nWatchdogSec=10s\nTimeoutAbortSec=1s\n' >" + soon +
			"/soon.conf; systemctl daemon-reload")
		pid := m.property(user, "MainPID")
		m.run("kill -KILL " + pid) // the next one has the time
		m.until("another taskapi", crashed(user, pid))
		pid = m.property(user, "MainPID")
		m.until("it is ready", func() bool { return m.property(user, "SubState") == "running" })
		m.run("kill -STOP " + pid)
		m.until("another taskapi", crashed(user, pid))
		m.run("rm -r " + soon + "; systemctl daemon-reload")
	})
	same("an upgrade", func() {
		m.run(`printf 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n' >/etc/apt/apt.conf.d/99test`)
		line := commands(t, "Packages")[0]
		m.run("cd /mnt/new; " + strings.ReplaceAll(line, "amd64", architecture()))
	})
	for _, data := range []string{"/var/lib/taskapi", "/var/lib/taskapi-user"} {
		if v := version(data); strings.Contains(v, "0.0.1") {
			t.Errorf("the old taskapi runs on in %s: %s", data, v)
		}
	}
	same("an upgrade by hand", func() {
		lines := commands(t, "Upgrading")
		m.run(strings.ReplaceAll(lines[len(lines)-1], "UNIT", root))
	})
	for _, line := range table.FindAllStringSubmatch(section(t, "systemd"), -1) {
		m.run(line[1])
		out, _ := m.try("systemctl is-active " + root)
		if stops := strings.HasPrefix(line[1], "systemctl stop "); stops != (out == "inactive") {
			t.Errorf("after %q, %s is %s", line[1], root, out)
		}
	}
	same("a restart that leaves the tasks", func() {
		drop := "/etc/systemd/system/" + root + ".service.d"
		m.run("mkdir -p " + drop + "; printf '[Service]\nKillSignal=SIGUSR1\n' >" + drop +
			"/leave.conf; systemctl daemon-reload; systemctl restart " + root +
			"; rm -r " + drop + "; systemctl daemon-reload")
	})

	// The audit log: a line that follows its rotation goes to the new file.
	m.run("printf 'audit {\n  path = \"/var/log/taskapi/audit.log\"\n}\n' >>/etc/taskapi/taskapi.hcl; " +
		"taskapi config >/dev/null; systemctl restart " + root + "; taskapi restart hello; logrotate --force " +
		"/etc/logrotate.d/taskapi")
	m.until("a line in the new audit log", func() bool {
		_, _ = m.try("taskapi restart hello")
		out, _ := m.try("test -s /var/log/taskapi/audit.log && test -s /var/log/taskapi/audit.log.1 && echo both")
		return out == "both"
	})

	// A key that only systemd knows seals the key ring.
	m.run(`head -c 32 /dev/urandom >/root/seal.key
mkdir /etc/systemd/system/taskapi@sealed.service.d
cat >/etc/systemd/system/taskapi@sealed.service.d/seal.conf <<'END'
` + sealDropIn(t) + `END
sed 's/"hello"/"sealed"/' /etc/taskapi/hello.nomad.hcl >/etc/taskapi/sealed.nomad.hcl
systemctl daemon-reload
systemctl start taskapi@sealed
! test -e /var/lib/taskapi/sealed/keyring/seal.key
taskapi keyring list --data-dir /var/lib/taskapi/sealed
systemctl stop taskapi@sealed`)

	running := func(after string) {
		t.Helper()
		for _, unit := range []string{root, user} {
			m.until(unit+" runs a task after "+after, func() bool {
				out, _ := m.try("systemctl is-active " + unit)
				return out == "active" && task(m, unit) != ""
			})
		}
	}
	m.off()
	m = boot(t, dir)
	running("a reboot")
	m.run("sync")
	m.kill()
	m = boot(t, dir)
	running("a power cut")

	for _, line := range commands(t, "Removing") {
		m.run(line)
	}
	if out, _ := m.try("ps -e -o args= | grep -E '[t]askapi keeper|[h]ello from'"); out != "" {
		t.Errorf("the removal has left processes:\n%s", out)
	}
	m.off()
	if left := leftovers(t, filepath.Join(dir, "upper")); !slices.Equal(left, []string{
		"etc/systemd/system/multi-user.target.wants/" + user + ".service",
		"etc/systemd/system/multi-user.target.wants/" + root + ".service",
		"etc/systemd/system/taskapi@sealed.service.d", "etc/systemd/system/taskapi@sealed.service.d/seal.conf",
		"etc/taskapi", "etc/taskapi/hello.nomad.hcl", "etc/taskapi/sealed.nomad.hcl"}) {
		t.Errorf("after the purge, these are left: %q", left)
	}
}

// task returns the process of the task that a unit runs; empty for none.
func task(m *machine, unit string) string {
	m.t.Helper()
	data := map[string]string{"taskapi@hello": "/var/lib/taskapi", "taskapi-user@hello": "/var/lib/taskapi-user"}[unit]
	out, _ := m.try("grep --files-with-matches --null-data '^NOMAD_ALLOC_DIR=" + data +
		"/allocs/' /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3 | sort -n | sed -n 1p") // its children come later
	return out
}

// sealDropIn returns the drop-in of docs/install.md that has systemd hand over the key.
func sealDropIn(t *testing.T) string {
	t.Helper()
	_, rest, found := strings.Cut(section(t, "systemd"), "```ini\n[Service]\nLoadCredential=")
	drop, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatal("docs/install.md shows no drop-in with LoadCredential")
	}
	return "[Service]\nLoadCredential=" + drop
}

// leftovers returns the paths with taskapi in their names that were added to a machine.
func leftovers(t *testing.T, upper string) (left []string) {
	t.Helper()
	err := filepath.WalkDir(upper, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err = filepath.Rel(upper, path)
		if strings.Contains(path, "taskapi") && entry.Type()&fs.ModeDevice == 0 {
			left = append(left, path)
		}
		return err
	})
	must.OK(t, err)
	return left
}
