package packaging_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// TestRelease builds a release here and in a clone: both are the same to the last byte. It then looks into each part.
func TestRelease(t *testing.T) {
	if !*whole {
		t.Skip("takes minutes: make test-release")
	}
	out, place := filepath.Join(t.TempDir(), "dist"), t.TempDir()
	release(t, out)
	run(t, "git", "clone", "--quiet", "..", filepath.Join(place, "taskapi"))
	again := exec.CommandContext(t.Context(), "sh", "-euc", commands(t, "A release")[2])
	again.Dir = filepath.Join(place, "taskapi")
	must.OK(t, os.Link(filepath.Join(out, "SHA256SUMS"), filepath.Join(again.Dir, "SHA256SUMS")))
	if text, err := again.CombinedOutput(); err != nil {
		t.Errorf("two releases differ: %v\n%s", err, text)
	}
	run(t, "sh", "-euc", "cd "+out+"; "+commands(t, "A release")[0])
	version, commit := programVersion(t), run(t, "git", "rev-parse", "--short=12", "HEAD")
	name := filepath.Join(out, "taskapi_"+version+"_linux_")

	t.Run("programs", func(t *testing.T) {
		for arch, emulator := range map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"} {
			t.Run(arch, func(t *testing.T) {
				words := []string{name + arch, "version"}
				if arch != architecture() {
					if _, err := exec.LookPath(emulator); err != nil {
						t.Skip(err)
					}
					words = append([]string{emulator}, words...)
				}
				said := run(t, words[0], words[1:]...)
				for _, want := range []string{"taskapi " + version + " ", "commit " + commit + ",", "Nomad API ", "linux/" + arch} {
					if !strings.Contains(said, want) {
						t.Errorf("it says %q, and not %q", said, want)
					}
				}
			})
		}
	})
	t.Run("packages", func(t *testing.T) {
		deb := files(run(t, "dpkg-deb", "--fsys-tarfile", filepath.Join(out, "taskapi_"+version+"-1_amd64.deb")), t)
		for _, want := range []string{"/usr/bin/taskapi", "/usr/share/man/man1/taskapi.1.gz", "/etc/taskapi/taskapi.hcl",
			"/usr/lib/systemd/system/taskapi@.service", "/usr/lib/systemd/system/taskapi-agent.service",
			"/usr/lib/sysusers.d/taskapi.conf", "/etc/logrotate.d/taskapi",
			"/usr/share/bash-completion/completions/taskapi", "/usr/share/zsh/vendor-completions/_taskapi",
			"/usr/share/fish/vendor_completions.d/taskapi.fish", "/usr/share/doc/taskapi/README.md"} {
			if !slices.Contains(deb, want) {
				t.Errorf("the .deb has no %s", want)
			}
		}
		checkLinks(t, filepath.Join(out, "taskapi_"+version+"-1_amd64.deb"))
		if _, err := exec.LookPath("rpm"); err != nil {
			t.Skip(err)
		}
		rpm := strings.Fields(run(t, "rpm", "-qlp", filepath.Join(out, "taskapi-"+version+"-1.x86_64.rpm")))
		slices.Sort(rpm)
		rpm = slices.DeleteFunc(rpm, func(path string) bool { // it also lists directories of its own
			return slices.ContainsFunc(deb, func(file string) bool { return strings.HasPrefix(file, path+"/") })
		})
		if !slices.Equal(deb, rpm) {
			t.Errorf("the .deb has\n%q, the .rpm\n%q", deb, rpm)
		}
	})
	t.Run("list of contents", func(t *testing.T) {
		text := must.Read(t, name+"amd64.cdx.json")
		var list struct {
			BOMFormat  string
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal(text, &list); err != nil || list.BOMFormat != "CycloneDX" {
			t.Fatalf("%v, %q", err, list.BOMFormat)
		}
		if len(list.Components) < 20 || !strings.Contains(string(text), "github.com/hashicorp/nomad/api") {
			t.Errorf("it lists %d components", len(list.Components))
		}
	})
	t.Run("image", func(t *testing.T) { testImage(t, name+architecture()+".oci.tar") })
}

// files returns the paths of the files in an archive.
func files(archive string, t *testing.T) (paths []string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "tar", "--list")
	list.Stdin = strings.NewReader(archive)
	out := must.Get(list.Output())(t)
	for path := range strings.FieldsSeq(string(out)) {
		if !strings.HasSuffix(path, "/") {
			paths = append(paths, strings.TrimPrefix(path, "."))
		}
	}
	slices.Sort(paths)
	return paths
}

// imageJob leaves an orphan to PID 1 each time that it is started.
const imageJob = `job "hello" {
  group "hello" {
    task "shell" {
      driver = "raw_exec"
      config {
        command = "/programs/busybox"
        args    = ["sh", "-c", <<-END
          trap 'echo stopped; exit 0' INT
          (/programs/busybox sleep 1 &)
          echo started
          while :; do /programs/busybox sleep 0.1; done
        END
        ]
      }
    }
  }
}
`

// testImage loads the image and runs it, as PID 1, with each engine that runs here: it removes zombies, and the stop of
// the container stops the job gracefully.
func testImage(t *testing.T, archive string) {
	needMachine(t, "busybox")
	version := programVersion(t)
	engines := map[string]func(t *testing.T, dir string) string{"podman": podman, "docker": docker}
	for engine, start := range engines {
		t.Run(engine, func(t *testing.T) {
			dir := must.ShortDir(t)
			command := start(t, dir)
			in := func(script string) string {
				t.Helper()
				return run(t, "sh", "-euc", "cd "+dir+"\n"+script)
			}
			in("mkdir programs; cp $(command -v busybox) programs/")
			must.OK(t, os.WriteFile(filepath.Join(dir, "job.nomad.hcl"), []byte(imageJob), 0o644))
			lines := commands(t, "Container image")
			as := func(line, more string) string {
				line = strings.Replace(line, "docker ", command+" ", 1)
				line = strings.ReplaceAll(line, "taskapi_0.2.0_linux_amd64.oci.tar", archive)
				return strings.Replace(strings.ReplaceAll(line, "./", dir+"/"), " run ", " run "+more+" ", 1)
			}
			if out := in(as(lines[0], "")); !strings.Contains(out, "taskapi:"+version) {
				t.Errorf("loaded: %s", out)
			}
			// Without limits, podman wants more open files than this machine may allow.
			id := in(as(lines[1], "--detach --network none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024"))
			t.Cleanup(func() { _, _ = exec.Command("sh", "-c", command+" rm -f "+id).CombinedOutput() })
			pid := in(command + " inspect --format '{{.State.Pid}}' " + id)
			until(t, "the task runs", func() bool {
				out, _ := exec.Command("sh", "-c", command+" logs "+id+" 2>&1").Output()
				return strings.Contains(string(out), "Started")
			})
			until(t, "the orphan has ended, and its zombie is gone", func() bool {
				out, _ := exec.Command("nsenter", "--target", pid, "--pid", "--mount", "/programs/busybox", "ps", "-o",
					"stat,args").Output()
				return len(out) > 0 && !strings.Contains(string(out), "sleep 1\n") && !strings.Contains(string(out), "\nZ")
			})
			in(command + " stop --time 60 " + id)
			if code := in(command + " inspect --format '{{.State.ExitCode}}' " + id); code != "0" {
				t.Errorf("exit code %s", code)
			}
			out, _ := exec.Command("sh", "-c", command+" logs "+id+" 2>&1").Output()
			if !strings.Contains(string(out), "allocation is complete") {
				t.Errorf("it was not stopped gracefully:\n%s", out)
			}
		})
	}
}

// podman returns the command of a podman with images and containers of its own.
func podman(t *testing.T, dir string) string {
	for _, program := range []string{"podman", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	return "podman --runtime runc --storage-driver vfs --root " + dir + "/root --runroot " + dir + "/run"
}

// docker starts a Docker daemon and returns the command of its client.
func docker(t *testing.T, dir string) string {
	if _, err := exec.LookPath("dockerd"); err != nil {
		t.Skip(err)
	}
	socket := "unix://" + dir + "/docker.sock"
	daemon := exec.Command("dockerd", "--iptables=false", "--bridge=none", "--storage-driver=vfs", "--host="+socket,
		"--data-root="+dir+"/data", "--exec-root="+dir+"/exec", "--pidfile="+dir+"/docker.pid")
	log := must.Get(os.Create(filepath.Join(dir, "log")))(t)
	defer log.Close()
	daemon.Stdout, daemon.Stderr = log, log
	must.OK(t, daemon.Start())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	t.Cleanup(func() {
		_ = daemon.Process.Signal(os.Interrupt)
		<-ended
	})
	command := "docker --host " + socket
	until(t, "the daemon answers", func() bool {
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Skipf("no Docker daemon runs here: %v\n%s", err, text)
		default:
		}
		return exec.Command("sh", "-c", command+" version").Run() == nil
	})
	return command
}

// checkLinks: a link of a document in the package leads to a file of the package, unless it is for those who change
// taskapi.
func checkLinks(t *testing.T, deb string) {
	t.Helper()
	dir := t.TempDir()
	run(t, "dpkg-deb", "--extract", deb, dir)
	dir = filepath.Join(dir, "usr/share/doc/taskapi")
	documents, err := filepath.Glob(filepath.Join(dir, "docs", "*.md"))
	if err != nil || len(documents) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, document := range append(documents, filepath.Join(dir, "README.md"), filepath.Join(dir, "examples/README.md")) {
		text := must.Read(t, document)
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			to, err := filepath.Rel(dir, filepath.Join(filepath.Dir(document), found[1]))
			if _, missing := os.Stat(filepath.Join(dir, to)); err == nil && missing != nil && to != "LICENSE" &&
				to != "CONTRIBUTING.md" && !strings.HasPrefix(to, "packaging/") {
				t.Errorf("%s of the .deb leads to %s, which is not there", filepath.Base(document), found[1])
			}
		}
	}
}
