// Command screens makes the pictures of taskapi top in docs/screens: it runs examples, lets top show them on terminals
// of tmux for some minutes, and writes what these show, as text and as SVG. 'make screens' runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"taskapi/cmd/taskapi/internal/tmux"
	"taskapi/internal/wake"
)

type picture struct {
	name          string // of its files
	width, height int
	args          string   // of taskapi top
	keys          []string // to press, by tmux's names
	svg           bool     // a picture, else text
}

var pictures = []picture{
	{"top", 100, 21, "web", []string{"Home"}, true},
	{"top-list", 100, 21, "", nil, true},
	{"list-80x24", 80, 24, "", nil, false},
	{"inside-40x10", 40, 10, "web", nil, false},
	{"inside-80x24", 80, 24, "web", nil, false},
	{"inside-200x50", 200, 50, "web", nil, false},
}

func main() {
	bin := flag.String("bin", "bin", "folder with taskapi, demo-server and demo-watcher")
	out := flag.String("out", "docs/screens", "folder of the pictures")
	during := flag.Duration("for", 2*time.Minute, "how long top looks before its pictures are taken")
	flag.Parse()
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	if err := run(ctx, *bin, *out, *during); err != nil {
		fmt.Fprintln(os.Stderr, "screens:", err)
		os.Exit(1)
	}
}

// stage is where the examples run.
type stage struct {
	dir  string // with the programs and the data directory: a short path, which the pictures show
	data string
}

func run(ctx context.Context, bin, out string, during time.Duration) (err error) {
	for _, program := range []string{"tmux", "redis-server", "/usr/sbin/nginx"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: the pictures show examples/web.nomad.hcl, which needs it", err)
		}
	}
	dir, err := os.MkdirTemp("", "top")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := stage{dir, filepath.Join(dir, "data")}
	for _, program := range []string{"taskapi", "demo-server", "demo-watcher"} {
		if err := link(filepath.Join(bin, program), filepath.Join(dir, program)); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, s.taskapi("stop", "--all")) }()
	for _, args := range [][]string{
		{"--wait=complete", "examples/batch.nomad.hcl"},
		{"--wait", "-var", "bin=" + dir, "examples/demo.nomad.hcl"},
		{"examples/hello.nomad.hcl"},
		{"--wait", "examples/web.nomad.hcl"},
	} {
		if err := s.taskapi(append([]string{"run", "-d"}, args...)...); err != nil {
			return err
		}
	}
	address, err := s.output("service", "info", "-t", "{{(index . 0).Address}}:{{(index . 0).Port}}", "web")
	if err != nil {
		return err
	}
	visits, end := context.WithTimeout(ctx, during)
	defer end()
	terminals := make([]tmux.Terminal, len(pictures))
	for i, p := range pictures {
		terminals[i] = tmux.Terminal{Socket: filepath.Join(dir, p.name+".sock")}
		env := []string{"TASKAPI_DATA_DIR=" + s.data, "LC_ALL=C.UTF-8", "NO_COLOR="}
		if err := terminals[i].Open(p.width, p.height, env, filepath.Join(dir, "taskapi")+" top "+p.args); err != nil {
			return err
		}
		defer terminals[i].Close()
	}
	visit(visits, "http://"+strings.TrimSpace(address))
	for i, p := range pictures {
		if len(p.keys) > 0 {
			if _, err := terminals[i].Do(append([]string{"send-keys"}, p.keys...)...); err != nil {
				return err
			}
		}
	}
	if err := wake.Sleep(ctx, afterKeys); err != nil {
		return err
	}
	for i, p := range pictures {
		if err := p.write(terminals[i], out); err != nil {
			return err
		}
	}
	return nil
}

// afterKeys is how long top has to show what the keys have done.
const afterKeys = 3 * time.Second

// link makes a program known by another path.
func link(from, to string) error {
	path, err := filepath.Abs(from)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return fmt.Errorf("%w: 'make build' makes it", err)
	}
	return os.Symlink(path, to)
}

func (s stage) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.dir, "taskapi"), args...)
	cmd.Env = append(os.Environ(), "TASKAPI_DATA_DIR="+s.data)
	cmd.Stderr = os.Stderr
	return cmd
}

func (s stage) taskapi(args ...string) error {
	if err := s.command(args...).Run(); err != nil {
		return fmt.Errorf("taskapi %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (s stage) output(args ...string) (string, error) {
	out, err := s.command(args...).Output()
	if err != nil {
		return "", fmt.Errorf("taskapi %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// visit sends requests until ctx ends, more and fewer of them in waves, and some for pages that are not there.
func visit(ctx context.Context, url string) {
	const pause = 20 * time.Millisecond
	began := time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		wave := 1 + math.Sin(time.Since(began).Seconds()/7)
		path := "/"
		if n%900 == 450 {
			path = "/missing"
		}
		get(ctx, url+path)
		for range int(20 * wave) {
			get(ctx, url+"/")
		}
		time.Sleep(pause)
	}
}

func get(ctx context.Context, url string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil { // the pictures show what becomes of that
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
}

// write writes what a terminal shows.
func (p picture) write(term tmux.Terminal, out string) error {
	if p.svg {
		text, err := term.Do("capture-pane", "-p", "-e", "-N") // with the backgrounds of spaces
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(out, p.name+".svg"), svgOf(parse(text, p.width, p.height)), 0o644)
	}
	text, err := term.Do("capture-pane", "-p")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, p.name+".txt"), []byte(text+"\n"), 0o644)
}
