package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

var proxiedAt = regexp.MustCompile(`passing requests at (http://\S+) on to `)

// startProxy runs 'taskapi proxy' until the test ends and returns its URL.
func startProxy(t *testing.T, r *running, args ...string) string {
	t.Helper()
	var stdout, stderr polltest.Log
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		args := append([]string{"proxy", "--data-dir", string(r.layout), "--listen", "127.0.0.1:0"}, args...)
		code <- cli.Run(ctx, args, testEnvironment(&stdout, &stderr))
	}()
	t.Cleanup(func() {
		cancel()
		if got := <-code; got != 0 {
			t.Errorf("the proxy ended with %d: %s", got, stderr.String())
		}
	})
	var url string
	r.eventually("proxied", func() bool {
		if found := proxiedAt.FindStringSubmatch(stdout.String()); found != nil {
			url = found[1]
		}
		return url != ""
	})
	return url
}

// TestProxy: the SDK works over TCP as it does on the socket, also with what never ends or is no HTTP.
func TestProxy(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	r.operator()
	client := sdk(t, startProxy(t, r), r.file("operator.token"))
	if stubs, _, err := client.Allocations().List(nil); err != nil || len(stubs) != 1 {
		t.Errorf("allocations: %+v, %v", stubs, err)
	}
	input := make([]byte, 1<<20)
	_, _ = rand.Read(input)
	if out, _, code, err := sdkExec(t, client, "server", bytes.NewReader(input), "cat"); out != string(input) ||
		code != 0 || err != nil {
		t.Errorf("exec: %d bytes of %d, %d, %v", len(out), len(input), code, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := must.Get(client.EventStream().Stream(ctx, map[api.Topic][]string{api.TopicAllocation: {"*"}}, 0, nil))(t)
	must.OK(t, client.Allocations().Signal(&api.Allocation{ID: testAllocID}, nil, "server", "SIGCONT"))
	if event := <-events; event.Err != nil { // before the stream has an end
		t.Error(event.Err)
	}
}

// TestProxyLetsNobodyIn who would not be let in on the socket itself.
func TestProxyLetsNobodyIn(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	r.operator()
	operator, task := startProxy(t, r), startProxy(t, r, "demo", "server")
	operatorToken, taskToken := r.file("operator.token"), r.file("server", "secrets", "nomad_token")
	for _, test := range []struct {
		url, token, host, header string
		status                   int
	}{
		{operator, operatorToken, "", "", 200},
		{operator, operatorToken, "localhost:80", "", 200},
		{task, taskToken, "", "", 200},
		{operator, "", "", "", 401},
		{operator, taskToken, "", "", 403},
		{task, operatorToken, "", "", 403},
		{operator, operatorToken, "rebound.example", "", 421},
		{operator, operatorToken, "", "Origin", 403},
		{operator, operatorToken, "", "Referer", 403},
	} {
		request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, test.url+"/v1/allocations", nil))(t)
		request.Host = test.host
		if test.token != "" {
			request.Header.Set("X-Nomad-Token", test.token)
		}
		if test.header != "" {
			request.Header.Set(test.header, test.url)
		}
		answer := must.Get(http.DefaultClient.Do(request))(t)
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode != test.status {
			t.Errorf("%+v: %d", test, answer.StatusCode)
		}
	}
	if code := r.stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	answer := must.Get(http.Get(operator + "/v1/allocations"))(t)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
		t.Errorf("after the end: %d, %v", answer.StatusCode, answer.Header)
	}
}

// TestProxyOfOneUser: another user of the machine can't use up the failed look-ups of the proxy's user, unless the
// proxy is for all.
func TestProxyOfOneUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("another user needs root")
	}
	for _, tool := range []string{"setpriv", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	r := startRun(t, shortDir(t), testJob)
	r.operator()
	forOne, forAll := startProxy(t, r), startProxy(t, r, "--any-user")
	asNobody := func(url string, tokens int) string {
		args := []string{"--reuid", "65534", "--regid", "65534", "--clear-groups", "curl", "-sS", "-w", "\\n%{http_code}\\n",
			"-H", "X-Nomad-Token: bad.token.here"}
		for range tokens {
			args = append(args, url+"/v1/allocations")
		}
		out, err := exec.CommandContext(t.Context(), "setpriv", args...).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := asNobody(forOne, 1); out != "this proxy is for the processes of the user who started it, and of root; with "+
		"--any-user, it serves all users\n\n403\n" {
		t.Errorf("another user gets %q", out)
	}
	if out := asNobody(forAll, 1); out != "Forbidden\n403\n" {
		t.Errorf("with --any-user, another user gets %q", out)
	}
	const many = 200 // more than a user's failed look-ups
	if out := asNobody(forOne, many); strings.Count(out, "with --any-user") != many {
		t.Errorf("another user gets %s", out)
	}
	if _, _, err := sdk(t, forOne, r.file("operator.token")).Allocations().List(nil); err != nil {
		t.Errorf("after the bad tokens of another user, the proxy's user gets %v", err)
	}
}

// sidecarJob has a task that offers its socket over TCP to the other, which has no token there of its own.
const sidecarJob = `
job "demo" {
  group "web" {
    network {
      port "api" {}
    }
    task "server" {
      driver = "raw_exec"
      config {
        command = "TESTBINARY"
        args    = ["proxy", "--listen", "127.0.0.1:${NOMAD_PORT_api}"]
      }
      env {
        TASKAPI_TEST_MAIN = "1"
      }
      identity {
        env = true
        file = true
      }
    }
    task "other" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
    }
  }
}
`

// TestProxyAsATask serves the task's own socket.
func TestProxyAsATask(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), sidecarJob)
	operator := r.operator()
	alloc := asked(operator.Allocations().Info(testAllocID, nil))(t)
	url := "http://127.0.0.1:" + strconv.Itoa(alloc.AllocatedResources.Shared.Ports[0].Value)
	own := sdk(t, url, r.file("server", "secrets", "nomad_token"))
	r.eventually("served", func() bool {
		stubs, _, err := own.Allocations().List(nil)
		return err == nil && len(stubs) == 1
	})
	if _, _, err := sdk(t, url, r.file("other", "secrets", "nomad_token")).Allocations().List(nil); err == nil {
		t.Error("another task's token is good there")
	}
}

// TestProxyOfBadRequests: what is wrong is the client's fault, and is answered once. A body that does not come keeps no
// answer back.
func TestProxyOfBadRequests(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob)
	r.operator()
	url := startProxy(t, r)
	const search, smuggled = "PUT /v1/search HTTP/1.1\r\nHost: localhost\r\n", "GET /v1/jobs HTTP/1.1\r\nHost: " +
		"localhost\r\n\r\n"
	token := "X-Nomad-Token: " + r.file("operator.token") + "\r\n"
	for request, want := range map[string]int{
		search + token + "Content-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + smuggled: 200,
		search + token + "Transfer-Encoding: chunked\r\n\r\nno number\r\n":                                        400,
		search + token + "Connection: Upgrade, close\r\nUpgrade: \xff\r\n\r\n":                                    400,
		search + "Content-Length: 7\r\n\r\n{":                                                                     401,
	} {
		conn := must.Get(net.Dial("tcp", strings.TrimPrefix(url, "http://")))(t)
		if _, err := io.WriteString(conn, request); err != nil {
			t.Error(err)
		}
		reader := bufio.NewReader(conn)
		answer := must.Get(http.ReadResponse(reader, nil))(t)
		if _, _ = io.Copy(io.Discard, answer.Body); answer.StatusCode != want {
			t.Errorf("%q: %d, want %d", request, answer.StatusCode, want)
		}
		if next, _ := io.ReadAll(reader); len(next) > 0 {
			t.Errorf("%q: %q comes after the answer", request, next)
		}
		conn.Close()
	}
}
