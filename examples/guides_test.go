package examples_test

import (
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskapi/internal/must"
)

var (
	// fence matches a block of code of a document: its language, and the code.
	fence = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")
	// fileName matches the first line of a block that is a file.
	fileName = regexp.MustCompile(`\A# ([\w.-]+\.\w+|Dockerfile)\n`)
	// row matches what the second column of a table has a reader type.
	row = regexp.MustCompile("(?m)^\\| [^|]+ \\| (`taskapi [^|]*)")
	// typed matches one command of such a row.
	typed = regexp.MustCompile("`(taskapi [^`]+)`")
)

// guide is a page of docs/ whose commands a reader types one after another.
type guide struct {
	page string
	// program is one that the page needs, besides taskapi and what every machine has.
	programs []string
	// before is what the page takes for granted.
	before string
	// ports are the numbers in the page for which a test takes free ones.
	ports []string
	// wants are texts that the commands print.
	wants []string
	// setup prepares the folder in which the page is followed. Programs in its bin are found first.
	setup func(t *testing.T, place string)
	// notRoot says that another user can follow the page, too.
	notRoot bool
}

// TestGuides follows each guide word by word: its files are written, and its commands are run in their order, as this
// user and as one who is not root. After them come the commands of its tables.
func TestGuides(t *testing.T) {
	bin := programs(t)
	for _, g := range []guide{
		{page: "prometheus", programs: []string{"promtool", "curl"}, ports: []string{"9100"}, notRoot: true,
			wants: []string{`check="greets"`, "SUCCESS: prometheus.yml is valid", "Unit Testing:  alerts_test.yml\n  SUCCESS"}},
		{page: "from-compose", programs: []string{"python3", "curl"}, ports: []string{"8088"}, notRoot: true,
			wants: []string{"would run: ", "migrated", "nothing to change"}},
		{page: "from-systemd", programs: []string{"python3", "curl"}, ports: []string{"8089"}, notRoot: true,
			wants: []string{"would run: ", "prepared", "nothing to change"}},
		{page: "from-nomad-dev", notRoot: true,
			wants: []string{"would run: ", "uid=", "hello from greeter", "my socket is unix://", "greeting  =  hi"}},
		{page: "artifacts", programs: []string{"tar", "gzip"}, notRoot: true,
			wants: []string{"Downloading Artifacts", "hello from an artifact"}},
		{page: "backup", programs: []string{"tar"}, notRoot: true,
			wants: []string{"hello.hello[0]", "greeting  =  hi", "seal.key is gone", "refused from now on"}},
		{page: "api", notRoot: true, before: "taskapi run -d examples/hello.nomad.hcl",
			wants: []string{`"Name":"hello.hello[0]"`, `"Check":"greets"`}},
		{page: "volumes", notRoot: true, wants: []string{"would run: ", "2 ledger/entries"}},
		{page: "jobfiles", notRoot: true, wants: []string{"would run: job \"small\"", "Status       running"}},
		{page: "batch", notRoot: true, wants: []string{"to 64: a photo", `"DispatchedJobID":"resize/dispatch-`,
			"Waits for dispatches", "would run: job \"report\"", "Next launch at ", "report/periodic-"}},
		{page: "readiness", programs: []string{"systemd-notify"}, notRoot: true,
			wants: []string{"running, healthy: serving 12 documents", "index       Ready"}},
		{page: "agent", programs: []string{"curl"}, notRoot: true,
			wants: []string{`"Name":"hello.hello[0]"`, `"Running":1`, `"EvalID":"`}},
		{page: "devices", notRoot: true, wants: []string{"would run: job \"sound\"", "cards card-0,card-1", "refused"}},
		{page: "cluster", programs: []string{"etcd"}, ports: []string{"2379"}, notRoot: true, setup: withEtcd,
			wants: []string{"greeting  =  hi", "hello         default"}},
		{page: "fleet", programs: []string{"etcd"}, ports: []string{"2379"}, notRoot: true, setup: withEtcd,
			wants: []string{`"Name":"hello.hello[0]"`, `"Name":"once.g[0]"`, "standing by: once.g[0] runs on the machine",
				`the token with the jti "stolen"`}},
		{page: "containers", programs: []string{"podman", "runc", "busybox"}, setup: podmanAsDocker,
			wants: []string{"success  greets", "greeter | hello from greeter", "hello.hello[0]  complete",
				"the keeper was killed, and the task with it"}},
	} {
		t.Run(g.page, func(t *testing.T) {
			t.Parallel()
			for _, program := range g.programs {
				if _, err := exec.LookPath(program); err != nil {
					t.Skip(program + " is not installed")
				}
			}
			t.Run("this user", func(t *testing.T) { t.Parallel(); follow(t, g, bin, nil) })
			t.Run("another user", func(t *testing.T) {
				t.Parallel()
				if os.Geteuid() != 0 || !g.notRoot {
					t.Skip("needs root, to become another user, and a page for other users")
				}
				follow(t, g, bin, &syscall.Credential{Uid: 65534, Gid: 65534})
			})
		})
	}
}

// TestGuidesShareEtcd: a reader follows one guide after another with one etcd, so each has a prefix for its own key.
func TestGuidesShareEtcd(t *testing.T) {
	pages := map[string]string{}
	for page, text := range documents(t) {
		for _, found := range regexp.MustCompile(`(?m)^ *address *= *"(etcd://.*)"$`).FindAllStringSubmatch(text, -1) {
			if other := pages[found[1]]; other != "" {
				t.Errorf("%s and %s have the address %s", page, other, found[1])
			}
			pages[found[1]] = page
		}
	}
	if len(pages) < 2 {
		t.Errorf("the guides have the addresses %q", pages)
	}
}

func follow(t *testing.T, g guide, bin string, as *syscall.Credential) {
	place := must.ShortDir(t)
	text := documents(t)[filepath.Join(root, "docs", g.page+".md")]
	for _, port := range g.ports {
		text = strings.ReplaceAll(text, port, freePort(t))
	}
	files := map[string]string{}
	for _, f := range fence.FindAllStringSubmatch(text, -1) {
		if strings.Contains(f[2], "taskapi gc --all") {
			t.Error("who follows the page loses all allocations that have ended, and not only those of the page")
		}
		if name := fileName.FindStringSubmatch(f[2]); name != nil {
			files[name[1]] = f[2]
		}
	}
	here, err := os.Getwd()
	must.OK(t, err)
	must.OK(t, os.CopyFS(filepath.Join(place, "examples"), os.DirFS(here)))
	for name, content := range files {
		must.OK(t, os.WriteFile(filepath.Join(place, name), []byte(content), 0o644))
	}
	must.OK(t, os.Chmod(place, 0o755))
	if as != nil {
		err := filepath.WalkDir(place, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chown(path, int(as.Uid), int(as.Gid))
		})
		must.OK(t, err)
	}
	if g.setup != nil {
		g.setup(t, place)
	}
	command := exec.CommandContext(t.Context(), "sh", "-c", guideScript(text, g.before, as == nil && os.Geteuid() == 0))
	command.Dir = place
	command.Env = []string{"HOME=" + place, "PATH=" + filepath.Join(place, "bin") + ":" + bin + ":" +
		os.Getenv("PATH"), "PLACE=" + place}
	if as == nil && !strings.Contains(text, "\nexport TASKAPI_DATA_DIR=") { // root's own data directory is the machine's
		command.Env = append(command.Env, "TASKAPI_DATA_DIR="+filepath.Join(place, "data"))
	}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range g.wants {
		if !strings.Contains(string(out), want) {
			t.Errorf("nothing says %q:\n%s", want, out)
		}
	}
}

// guideScript returns what a page has this user type. A command that needs a terminal is left out, and so is what an
// earlier line has done already. All allocations are stopped at the end, whatever came of the rest.
func guideScript(text, before string, isRoot bool) string {
	script := []string{"set -eu", `trap 'cd "$PLACE"; taskapi stop --all --now >/dev/null 2>&1 || :' EXIT`, before}
	ran := map[string]bool{}
	add := func(line string) {
		switch {
		case strings.HasSuffix(line, "# as root") && !isRoot, strings.HasSuffix(line, "# as another user") && isRoot:
			return
		case strings.HasPrefix(line, "taskapi top"), strings.HasPrefix(line, "taskapi attach"): // need a terminal
			return
		case strings.HasPrefix(line, "taskapi run ") && ran[line[strings.LastIndexByte(line, ' '):]]:
			return
		}
		command, _, _ := strings.Cut(line, "    #")
		if command = strings.TrimSpace(command); strings.HasPrefix(command, "taskapi run ") {
			ran[command[strings.LastIndexByte(command, ' '):]] = true
		}
		script = append(script, "echo '$ "+strings.ReplaceAll(command, "'", `'\''`)+"' >&2", line)
	}
	for _, f := range fence.FindAllStringSubmatch(text, -1) {
		if f[1] == "sh" {
			for line := range strings.Lines(f[2]) {
				add(strings.TrimSuffix(line, "\n"))
			}
		}
	}
	script = append(script, `cd "$PLACE"`)
	for _, r := range row.FindAllStringSubmatch(text, -1) {
		for _, command := range typed.FindAllStringSubmatch(r[1], -1) {
			add(command[1])
		}
	}
	return strings.Join(script, "\n")
}

// withEtcd starts the etcd server whose address the page's settings have.
func withEtcd(t *testing.T, place string) {
	text := must.Read(t, filepath.Join(place, "taskapi.hcl"))
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(string(text))
	peer := "http://127.0.0.1:" + freePort(t)
	cmd := exec.Command("etcd", "--data-dir", t.TempDir(), "--unsafe-no-fsync",
		"--listen-client-urls", "http://"+address, "--advertise-client-urls", "http://"+address,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // likewise
	})
	for range 3000 { // it listens once it can serve
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return
		}
		time.Sleep(10 * time.Millisecond) // between looks
	}
	t.Fatal("etcd does not listen on " + address)
}

// podmanAsDocker makes a docker that is podman, with images and containers of its own. It has an image of Debian's name
// with little in it, since a test can't fetch one. A command in a container is tried again while taskapi starts there.
func podmanAsDocker(t *testing.T, place string) {
	const shim = `#!/bin/sh
verb=$1; shift
podman() {
	command podman --runtime runc --storage-driver vfs --root "$PODMAN/root" --runroot "$PODMAN/run" "$@"
}
PODMAN=${0%/bin/docker}/podman
case $verb in
run) set -- --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@" ;;
build) set -- --isolation chroot --pull=never "$@" ;;
stop) # before that, the first process reaps what others leave to it
	podman exec "$1" sh -c '(sleep 0.1 &)'
	for try in $(seq 100); do
		podman exec "$1" ps -o stat,args | grep -qE '^Z|sleep 0\.1' || break
		sleep 0.1
		[ "$try" != 100 ] || exit 1
	done ;;
exec)
	for try in $(seq 100); do
		out=$(podman exec "$@" 2>&1) && case $out in
		*pending* | "no allocations"*) ;;
		*) case $*/$out in *events/*Restarting*) break ;; *events/*) ;; *) break ;; esac ;;
		esac
		sleep 0.5
	done
	echo "$out"
	exit ;;
esac
podman "$verb" "$@"
`
	const base = `mkdir base
cp "$(command -v busybox)" base/busybox
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n' >base/passwd
printf 'root:x:0:\nnogroup:x:65534:\n' >base/group
cat >base/Dockerfile <<END
FROM scratch
COPY busybox /bin/busybox
COPY passwd group /etc/
RUN ["/bin/busybox", "--install", "-s", "/bin"]
END
"$PWD/bin/docker" build -t docker.io/library/debian:bookworm-slim base
"$PWD/bin/docker" run --rm debian:bookworm-slim true`
	if os.Geteuid() != 0 {
		t.Skip("needs root, for containers")
	}
	must.OK(t, os.Mkdir(filepath.Join(place, "bin"), 0o755))
	must.Program(t, filepath.Join(place, "bin", "docker"), []byte(shim))
	build := exec.CommandContext(t.Context(), "sh", "-euc", base)
	build.Dir = place
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("podman can't run a container here: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		remove := exec.Command(filepath.Join(place, "bin", "docker"), "rm", "-f", "-a")
		remove.Dir = place
		_ = remove.Run()
	})
}

// freePort returns a port on which nobody listens. It is below those that the kernel and taskapi give to others, who
// could have it before the test.
func freePort(t *testing.T) string {
	t.Helper()
	for range 1000 {
		port := strconv.Itoa(10_000 + rand.IntN(10_000))
		if free, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			free.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}
