package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/datadir"
)

// listenForTest is a server on the socket that it finds at descriptor 3. At SIGINT it answers those whom it has
// accepted, and exits. At SIGUSR1 it shuts the socket down, for all that have it.
func listenForTest() {
	if os.Getenv("LISTEN_PID") != fmt.Sprint(os.Getpid()) || os.Getenv("LISTEN_FDNAMES") != "http" {
		fmt.Println(os.Environ())
		os.Exit(1)
	}
	l, err := net.FileListener(os.NewFile(3, "http"))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGUSR1)
	go func() {
		for sig := range signals {
			if sig == unix.SIGUSR1 {
				_ = unix.Shutdown(3, unix.SHUT_RDWR)
			}
			l.Close()
		}
	}()
	var answers sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil {
			break
		}
		answers.Go(func() {
			fmt.Fprintln(conn, os.Getenv("ANSWER"))
			conn.Close()
		})
	}
	answers.Wait()
	os.Exit(0)
}

// clients connect to an address again and again, and count how that ends.
type clients struct {
	answered, refused, lost atomic.Int64
	last                    atomic.Pointer[string] // the latest answer
}

func (c *clients) run(address string, quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		default:
		}
		conn, err := net.DialTimeout("tcp", address, deadline)
		if err != nil {
			if errors.Is(err, unix.ECONNREFUSED) {
				c.refused.Add(1)
			} else {
				c.lost.Add(1)
			}
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(deadline))
		answer, err := io.ReadAll(conn)
		conn.Close()
		if text := strings.TrimSpace(string(answer)); err != nil || text == "" {
			c.lost.Add(1)
		} else {
			c.answered.Add(1)
			c.last.Store(&text)
		}
	}
}

// listenJob is a server on a socket that is kept for it.
const listenJob = `
job "listen" {
  group "g" {
    network {
      port "http" { static = PORT }
    }
    restart {
      attempts = 10
      delay    = "1s"
    }
    task "main" {
      driver = "raw_exec"
      meta {
        taskapi_listen = "http"
      }
      env {
        TASKAPI_TEST_LISTEN = "1"
        ANSWER              = "one"
      }
      config {
        command = "SELF"
      }
    }
  }
}
`

// TestNoClientIsRefused while a task is restarted, updated, killed and replaced after it has shut its socket down, and
// while taskapi or the keeper is killed. Only the clients that a killed process has accepted are lost.
func TestNoClientIsRefused(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	port := strconv.Itoa(freePort(t, 12000, 19000))
	address := net.JoinHostPort("127.0.0.1", port)
	job := strings.NewReplacer("PORT", port, "SELF", self(t)).Replace(listenJob)
	file := jobFile(t, job)
	p := startProcess(t, dir, file)
	c := &clients{}
	until(t, p, "it listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	quit := make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()
	end := sync.OnceFunc(func() { close(quit) })
	defer end()
	for range 4 {
		running.Go(func() { c.run(address, quit) })
	}
	command := func(args ...string) {
		t.Helper()
		taskapi(t, append([]string{args[0], "-data-dir", dir}, args[1:]...)...)
	}
	// answered waits until clients that come from now on are answered.
	answered := func(what string) {
		t.Helper()
		before := c.answered.Load()
		until(t, p, what, func() bool { return c.answered.Load() > before+10 })
	}
	none := func(what string) {
		t.Helper()
		if refused, lost := c.refused.Load(), c.lost.Swap(0); refused > 0 || lost > 0 {
			t.Errorf("%s: %d clients were refused, %d lost, %d answered\n%s", what, refused, lost, c.answered.Load(), p.out)
		}
	}
	answered("answers")
	for range 3 {
		command("restart", testAllocID, "main")
		answered("answers after a restart")
	}
	none("restarts")
	kill(t, p)
	answered("answers without a taskapi")
	p = startProcess(t, dir, file)
	until(t, p, "resumed", func() bool { return strings.Contains(p.out.String(), "Resuming") })
	command("restart", testAllocID, "main")
	answered("answers after a restart by another taskapi")
	none("a killed taskapi")

	writeFile(t, file, strings.Replace(job, `"one"`, `"two"`, 1))
	command("update", "--restart", testAllocID, file)
	until(t, p, "the new version", func() bool { last := c.last.Load(); return last != nil && *last == "two" })
	none("an update with a restart")

	// A new allocation in its place: the tasks of the version before are stopped, before the new ones start.
	writeFile(t, file, strings.NewReplacer(`"one"`, `"three"`, `task "main"`, `task "other"`).Replace(job))
	command("update", "--replace", testAllocID, file)
	until(t, p, "another allocation", func() bool { last := c.last.Load(); return last != nil && *last == "three" })
	none("an update that replaces the allocation")
	writeFile(t, file, job)
	command("update", "--replace", testAllocID, file)
	until(t, p, "yet another allocation", func() bool { last := c.last.Load(); return last != nil && *last == "one" })
	none("another such update")

	command("signal", "-s", "SIGKILL", testAllocID, "main")
	until(t, p, "killed", func() bool { return strings.Contains(p.out.String(), "Signal: 9") })
	answered("answers after a killed task")
	c.lost.Store(0) // those that it had accepted
	none("a killed task")

	before := strings.Count(p.out.String(), "Task started by client")
	command("signal", "-s", "SIGUSR1", testAllocID, "main")
	until(t, p, "shut down, and started again", func() bool {
		return strings.Count(p.out.String(), "Task started by client") > before
	})
	answered("answers after a task has shut its socket down")
	c.lost.Store(0) // those in the queue at that moment
	c.refused.Store(0)
	if log, err := os.ReadFile(filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "keeper.log")); err != nil ||
		!strings.Contains(string(log), "shut down a listening socket") {
		t.Errorf("the keeper's log: %v, %s", err, log)
	}
	kill(t, p) // the next taskapi gets the sockets from the keeper
	p = startProcess(t, dir, file)
	until(t, p, "resumed", func() bool { return strings.Contains(p.out.String(), "Resuming") })
	command("signal", "-s", "SIGCONT", testAllocID, "main")
	killKeeper(t, dir)
	until(t, p, "the keeper is missed", func() bool { return strings.Contains(p.out.String(), "the keeper was killed") })
	answered("answers after a killed keeper")
	c.lost.Store(0) // those that the task had accepted
	none("a killed keeper")
	end()
	running.Wait()
	command("stop", testAllocID)
	if conn, err := net.Dial("tcp", address); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after the end: %v, %v", conn, err)
	}
	_ = p.Wait()
}
