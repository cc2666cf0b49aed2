package main

import (
	"bufio"
	"context"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/socket"
)

// uiJob is a shop. Its tasks try to get into the page by what they write, and one counts signals. The articles come
// again, since the page shows only the latest lines, and a busy machine reads it late.
const uiJob = `
job "shop" {
  type = "service"
  group "web" {
    service {
      name     = "shop"
      provider = "nomad"
      check {
        name     = "answers"
        type     = "script"
        task     = "server"
        command  = "/bin/sh"
        args     = ["-c", "echo '3 articles'"]
        interval = "1s"
        timeout  = "1s"
      }
      check {
        name      = "stock"
        type      = "script"
        task      = "server"
        command   = "/bin/sh"
        args      = ["-c", "echo 'no <b>stock</b>'; exit 2"]
        interval  = "1s"
        timeout   = "1s"
        on_update = "ignore"
      }
    }
    task "prepare" {
      driver = "raw_exec"
      lifecycle {
        hook = "prestart"
      }
      config {
        command = "/bin/echo"
        args    = ["prepared 3 articles"]
      }
    }
    task "server" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", <<-EOT
          trap 'echo reloaded >&2' USR1
          echo run >> local/runs
          printf '<script>document.title="owned"</script><img src=x onerror=document.title="owned"> '
          printf '\033]0;owned\007\033[31mred\n'
          i=0
          while :; do
            i=$((i % 20 + 1)); j=0
            echo "GET /articles/$i 200"
            [ $((i % 5)) = 0 ] && echo "article $i took long" >&2
            while [ $j -lt $((i % 7 * 15000)) ]; do j=$((j+1)); done
            sleep 0.3
          done
        EOT
        ]
      }
    }
    task "worker" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "while :; do echo packed an order; sleep 2; done"]
      }
    }
  }
}
`

// page is taskapi ui in this process, with a browser's cookies.
type page struct {
	*running
	url   string // as the server is found there
	host  string // as it is named
	input *os.File
	out   *bufio.Reader
	http.Client
}

var linked = regexp.MustCompile(`http://(taskapi-[a-z0-9]{16}\.localhost:(\d+))/open\?once=[A-Z0-9]{26}`)

// startUI runs an allocation of the job and 'taskapi ui' until the test ends.
func startUI(t *testing.T, r *running, args ...string) *page {
	t.Helper()
	in, input, err1 := os.Pipe()
	out, output, err2 := os.Pipe()
	jar, err3 := cookiejar.New(nil)
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	p := &page{running: r, input: input, out: bufio.NewReader(out), Client: http.Client{Jar: jar}}
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	var stderr polltest.Log
	w := testEnvironment(output, &stderr)
	w.Stdin = in
	go func() {
		code <- cli.Run(ctx, append([]string{"ui", "--data-dir", string(r.layout), "--no-open"}, args...), w)
	}()
	t.Cleanup(func() {
		cancel()
		if got := <-code; got != 0 || stderr.String() != "" {
			t.Errorf("the page ended with %d: %s", got, stderr.String())
		}
		for _, f := range []*os.File{in, input, out, output} {
			f.Close()
		}
	})
	return p
}

// link returns the next link that is printed.
func (p *page) link() string {
	p.t.Helper()
	for {
		line := must.Get(p.out.ReadString('\n'))(p.t)
		if found := linked.FindStringSubmatch(line); found != nil {
			p.url, p.host = "http://127.0.0.1:"+found[2], found[1]
			return found[0]
		}
	}
}

// request sends a request as a browser does that has the page's name, with changes.
func (p *page) request(method, path string, change func(*http.Request)) (status int, body string, header http.Header) {
	p.t.Helper()
	_, rest, found := strings.Cut(path, ".localhost:")
	if found {
		_, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	req := must.Get(http.NewRequestWithContext(p.t.Context(), method, p.url+path, nil))(p.t)
	req.Host = p.host
	if change != nil {
		change(req)
	}
	p.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp := must.Get(p.Do(req))(p.t)
	defer resp.Body.Close()
	text := must.Get(io.ReadAll(resp.Body))(p.t)
	return resp.StatusCode, string(text), resp.Header
}

func (p *page) get(path string) string {
	p.t.Helper()
	status, body, _ := p.request(http.MethodGet, path, nil)
	if status != http.StatusOK {
		p.t.Fatalf("%s: %d %s", path, status, body)
	}
	return body
}

// shows reports whether a page has the text. A page of an allocation that is still being made is not there yet.
func (p *page) shows(path, text string) bool {
	p.t.Helper()
	status, body, _ := p.request(http.MethodGet, path, nil)
	if status != http.StatusOK && status != http.StatusNotFound {
		p.t.Fatalf("%s: %d %s", path, status, body)
	}
	return status == http.StatusOK && strings.Contains(body, text)
}

// post sends a form as a page of the server does.
func (p *page) post(path string, form url.Values) int {
	p.t.Helper()
	status, _, _ := p.request(http.MethodPost, path, func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		r.Header.Set("Origin", "null")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(form.Encode())), int64(len(form.Encode()))
	})
	return status
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// TestUI reads and acts through the page, and attacks it.
func TestUI(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), uiJob)
	p := startUI(t, r)
	begun := time.Now()
	link, alloc := p.link(), "/alloc/"+testAllocID
	r.eventually("running", func() bool { return strings.Contains(r.stdout.String(), "worker      Started") })
	everything := []string{"/", alloc, alloc + "/output", alloc + "/restart", alloc + "/stop", "/static/ui.js",
		"/static/style.css", "/nothing", "/alloc/../etc", "//", "/open/x"}

	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead, http.MethodOptions, "PROPFIND"} {
		for _, path := range everything {
			status, body, _ := p.request(method, path, header("Sec-Fetch-Site", "same-origin"))
			if status != http.StatusUnauthorized || strings.Contains(body, "shop") {
				t.Errorf("without a session, %s %s: %d %s", method, path, status, body)
			}
		}
	}
	for name, change := range map[string]func(*http.Request){
		"another host":         func(r *http.Request) { r.Host = "evil.example" },
		"a name that is near":  func(r *http.Request) { r.Host = "taskapi-aaaaaaaaaaaaaaaa.localhost" },
		"a look ahead":         header("Sec-Purpose", "prefetch;prerender"),
		"a HEAD":               func(r *http.Request) { r.Method = http.MethodHead },
		"another secret":       func(r *http.Request) { r.URL.RawQuery = "once=AAAAAAAAAAAAAAAAAAAAAAAAAA" },
		"no secret":            func(r *http.Request) { r.URL.RawQuery = "" },
		"the cookie of nobody": func(r *http.Request) { r.URL.RawQuery = ""; r.Header.Set("Cookie", "taskapi=x") },
	} {
		if status, body, h := p.request(http.MethodGet, link, change); status < 400 || h.Get("Set-Cookie") != "" {
			t.Errorf("the link with %s: %d %s", name, status, body)
		}
	}
	asNobody(t, p, link, "")                // does not use it up, either
	if time.Since(begun) > 50*time.Second { // on a busy machine, the link ends meanwhile
		fmt.Fprintln(p.input)
		link = p.link()
	}
	status, body, h := p.request(http.MethodGet, link, header("Sec-Fetch-Site", "cross-site"))
	cookie := h.Get("Set-Cookie")
	wellMade := regexp.MustCompile(`^(taskapi-\w{16})=([A-Z0-9]{26}); Path=/; HttpOnly; SameSite=Strict$`)
	made := wellMade.FindStringSubmatch(cookie)
	if status != http.StatusOK || made == nil {
		t.Fatalf("the link: %d, cookie %q, %s", status, cookie, body)
	}
	cookie, _, _ = strings.Cut(cookie, ";")
	if status, body, _ := p.request(http.MethodGet, link, nil); status != http.StatusForbidden {
		t.Errorf("the link a second time: %d %s", status, body)
	}
	asNobody(t, p, link, "")
	asNobody(t, p, alloc, cookie)
	base := p.Client
	p.Client = http.Client{}
	with := func(change func(*http.Request)) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Cookie", cookie); change(r) }
	}
	for name, tc := range map[string]struct {
		method string
		change func(*http.Request)
		want   int
	}{
		"another host":              {"GET", func(r *http.Request) { r.Host = "evil.example" }, 421},
		"a page of another site":    {"GET", header("Sec-Fetch-Site", "cross-site"), 403},
		"a page of another port":    {"GET", header("Sec-Fetch-Site", "same-site"), 403},
		"a form of another site":    {"POST", header("Sec-Fetch-Site", "cross-site"), 403},
		"a form of another port":    {"POST", header("Sec-Fetch-Site", "same-site"), 403},
		"a form of an old browser":  {"POST", header("Origin", "http://evil.example"), 403},
		"a form without an origin":  {"POST", header("Origin", "null"), 403},
		"a form that says nothing":  {"POST", func(*http.Request) {}, 403},
		"a form that somebody sent": {"POST", header("Sec-Fetch-Site", "none"), 403},
		"the start of a secret":     {"GET", func(r *http.Request) { r.Header.Set("Cookie", cookie[:len(cookie)-1]) }, 401},
		"a large form": {"POST", func(r *http.Request) {
			r.Header.Set("Origin", "http://"+r.Host)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Body = io.NopCloser(strings.NewReader("task=" + strings.Repeat("x", 1<<20)))
		}, 400},
		"a query that can't be read": {"POST", func(r *http.Request) {
			r.Header.Set("Origin", "http://"+r.Host)
			r.URL.RawQuery = "task=server;x&%zz"
		}, 400},
		"a browser without names": {"GET", func(r *http.Request) { r.Host = "127.0.0.1:1" }, 200},
		"the user":                {"GET", header("Sec-Fetch-Site", "none"), 200},
		"the page":                {"GET", header("Sec-Fetch-Site", "same-origin"), 200},
	} {
		path := alloc
		if tc.method == http.MethodPost {
			path += "/stop"
		}
		status, _, h := p.request(tc.method, path, with(tc.change))
		if status != tc.want {
			t.Errorf("%s: %d, want %d", name, status, tc.want)
		}
		for name, want := range map[string]string{"Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store",
			"Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer",
			"X-Content-Type-Options": "nosniff"} {
			if h.Get(name) != want {
				t.Errorf("%s: the header %s is %q", tc.method, name, h.Get(name))
			}
		}
		csp := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'; style-src 'self'; ") ||
			!strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("the policy is %q", csp)
		}
	}
	p.Client = base
	p.Jar.SetCookies(mustURL(t, p.url), []*http.Cookie{{Name: made[1], Value: made[2]}})

	for _, path := range []string{"/alloc/x", "/alloc/" + strings.ToUpper(testAllocID), alloc[:len(alloc)-1],
		alloc + "?task=..%2f..%2fetc", alloc + "/output?task=../../../etc/passwd", alloc + "/restart?task=nobody",
		alloc + "/purge", alloc + "/stop?task=server", "/static/",
		"/alloc/..%2f..%2fetc%2fpasswd", "/static/..%2fui.go", "/static/nothing"} {
		if status, body, _ := p.request(http.MethodGet, path, nil); status != http.StatusNotFound && status/100 != 3 {
			t.Errorf("%s: %d %.100s", path, status, body)
		}
	}
	says := func(path string, wants ...string) string {
		text := p.get(path)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q:\n%s", path, want, text)
			}
		}
		return text
	}
	says("/", `href="`+alloc+`">shop.web[0]</a>`, "2 running, 1 complete")
	r.eventually("checked", func() bool { return strings.Contains(p.get(alloc), "failure") })
	text := says(alloc, "shop.web[0]", `<span class="status good">success</span>`, "no &lt;b&gt;stock&lt;/b&gt;",
		"GET /articles/1 200", "prepared 3 articles", "Task started by client", `<polyline points="`,
		alloc+"/restart?task=server", "&lt;script&gt;document.title=", "&gt; ?]0;owned??[31mred<")
	if strings.Contains(text, "<script>") || strings.Contains(text, "<img") || strings.ContainsAny(text, "\x1b\x07") {
		t.Errorf("the page has what a task wrote as it is:\n%s", text)
	}
	if one := says(alloc+"?task=worker", "packed an order"); strings.Contains(one, "/articles/1 ") {
		t.Errorf("the output of one task is\n%s", one)
	}
	_, part, _ := p.request(http.MethodGet, alloc, header("Taskapi-Part", "live"))
	if strings.Contains(part, "/articles/1 ") || !strings.Contains(part, "Task started by client") {
		t.Error("a refresh has the output")
	}

	followOutput(t, p, alloc)
	says(alloc+"/restart?task=server", "Restart task &#34;server&#34;", `/restart?task=server"`)
	runs := r.allocDir("server", "local", "runs")
	if got := p.post(alloc+"/signal?task=server", url.Values{"signal": {"SIGUSR1"}}); got != http.StatusSeeOther {
		t.Errorf("a signal: %d", got)
	}
	r.eventually("sent a signal", func() bool { return strings.Contains(p.get(alloc), "reloaded") })
	if got := p.post(alloc+"/restart?task=server", nil); got != http.StatusSeeOther {
		t.Errorf("a restart: %d", got)
	}
	r.eventually("restarted", func() bool { return countLines(runs) == 2 })
	r.eventually("done", func() bool { return strings.Contains(p.get(alloc), "restart task &#34;server&#34;") })
	says(alloc+"/pause?task=server", "Stop task &#34;server&#34;", "stays stopped until it is started")
	if got := p.post(alloc+"/pause", nil); got != http.StatusNotFound {
		t.Errorf("a stop of no task: %d", got)
	}
	p.post(alloc+"/pause?task=server", nil)
	r.eventually("stopped the task", func() bool {
		text := p.get(alloc)
		return strings.Contains(text, `<span class="status wait">stopped</span>`) &&
			!strings.Contains(text, alloc+"/restart?task=server") && strings.Contains(text, alloc+"/start?task=server")
	})
	p.post(alloc+"/start?task=server", nil)
	r.eventually("started the task", func() bool { return countLines(runs) == 3 })
	r.eventually("said so", func() bool { return strings.Contains(p.get(alloc), "start task &#34;server&#34;") })
	p.post(alloc+"/signal", url.Values{"signal": {"<b>SIGNOTHING"}})
	r.eventually("refused a signal", func() bool {
		return strings.Contains(p.get(alloc), `<p class="notice bad" role="status">`)
	})
	says(alloc, "&lt;b&gt;SIGNOTHING")

	fmt.Fprintln(p.input)
	if again := p.link(); again == link {
		t.Error("Enter prints the same link again")
	} else if status, _, _ := p.request(http.MethodGet, again, nil); status != http.StatusOK {
		t.Errorf("the second link: %d", status)
	}
	p.post(alloc+"/stop", nil)
	code := <-r.code // the page has stopped it
	r.code <- code
	if text := says(alloc, ">complete</span>", "GET /articles/1 200"); strings.Contains(text, `class="button"`) {
		t.Error("an allocation that has ended has buttons")
	}
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	return must.Get(url.Parse(text))(t)
}

// followOutput reads the output of the tasks until each has written something.
func followOutput(t *testing.T, p *page, alloc string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.url+alloc+"/output", nil)
	req.Host = p.host
	resp := must.Get(p.Do(req))(t)
	defer resp.Body.Close()
	wants := []string{"packed", "took long", "prepared"}
	for lines := bufio.NewScanner(resp.Body); len(wants) > 0 && lines.Scan(); {
		wants = slices.DeleteFunc(wants, func(want string) bool { return strings.Contains(lines.Text(), want) })
	}
	if len(wants) > 0 {
		t.Errorf("the output lacks %q", wants)
	}
}

// asNobody tries to read as another user of the machine, with all that the page's user has.
func asNobody(t *testing.T, p *page, path, cookie string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("another user needs root")
		return
	}
	for _, tool := range []string{"setpriv", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Logf("%s is not installed", tool)
			return
		}
	}
	address := path
	if strings.HasPrefix(path, "/") {
		address = "http://" + p.host + path
	}
	out, err := exec.CommandContext(t.Context(), "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
		"curl", "-sSi", "--resolve", p.host+":127.0.0.1", "-H", "Cookie: "+cookie, address).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "HTTP/1.1 403 ") || strings.Contains(string(out), "Set-Cookie") {
		t.Errorf("another user gets %s: %v\n%s", path, err, out)
	}
}

// TestUIAddress: other machines never reach the page, and other users don't reach its socket.
func TestUIAddress(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "192.0.2.1:80", ":80", "localhost", "unix://x"} {
		var stderr polltest.Log
		args := []string{"ui", "--data-dir", dir, "--listen", address}
		if code := cli.Run(t.Context(), args, testEnvironment(io.Discard, &stderr)); code != 2 {
			t.Errorf("--listen %s: %d %s", address, code, stderr.String())
		}
	}
	squatter, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Logf("without IPv6: %v", err)
	} else {
		defer squatter.Close()
		free := strings.Replace(squatter.Addr().String(), "[::1]", "127.0.0.1", 1)
		other := startUI(t, &running{t: t}, "--data-dir", dir)
		var stderr polltest.Log
		args := []string{"ui", "--data-dir", dir, "--listen", free}
		code := cli.Run(t.Context(), args, testEnvironment(io.Discard, &stderr))
		if code != 2 || !strings.Contains(stderr.String(), "[::1]:") {
			t.Errorf("where another user's server is at the other address: %d %s", code, stderr.String())
		}
		link := other.link()
		other.url = strings.Replace(other.url, "127.0.0.1", "[::1]", 1)
		if status, body, _ := other.request(http.MethodGet, link, nil); status != http.StatusOK {
			t.Errorf("over IPv6, the link gives %d %s", status, body)
		}
	}
	path := filepath.Join(dir, "ui.sock")
	p := startUI(t, &running{t: t, layout: "/nonexistent"}, "--data-dir", dir, "--listen", "unix://"+path)
	p.link()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info, err)
	}
}

// TestUIDocs runs each command of docs/ui.md, and opens the link that it prints. What ssh does for it, is that a port
// leads to its address.
func TestUIDocs(t *testing.T) {
	t.Parallel()
	text := must.Read(t, "../../docs/ui.md")
	dir, found := shortDir(t), 0
	for line := range strings.Lines(string(text)) {
		command, isCode := strings.CutPrefix(line, "    ")
		command, _, _ = strings.Cut(command, "#")
		tunnel, command, ok := strings.Cut(command, "taskapi ui")
		if !isCode || !ok {
			continue
		}
		found++
		args := strings.Fields(strings.ReplaceAll(command, "/run/user/1000", dir))
		listen := ""
		for i, arg := range args {
			if arg == "--listen" {
				listen = args[i+1]
				args[i+1] = strings.ReplaceAll(listen, ":4647", ":0") // others may have that port
			}
		}
		p := startUI(t, &running{t: t, layout: datadir.Dir(dir)}, args...)
		link := p.link()
		if rest, ok := strings.CutPrefix(tunnel, "ssh -t -L "); ok {
			port, to, _ := strings.Cut(strings.Fields(rest)[0], ":")
			if want := strings.TrimPrefix(strings.ReplaceAll(listen, dir, "/run/user/1000"), "unix://"); to != want {
				t.Errorf("the tunnel leads to %s, and the page is at %s", to, want)
			}
			if strings.HasPrefix(listen, "unix://") && !strings.Contains(link, ":"+port+"/") {
				t.Errorf("the tunnel has port %s, and the link is %s", port, link)
			}
		}
		if path, ok := strings.CutPrefix(listen, "unix://"); ok {
			p.Transport = overUnix(path).Transport
		}
		if status, body, _ := p.request(http.MethodGet, link, nil); status != http.StatusOK {
			t.Errorf("'taskapi ui%s': the link gives %d %s", command, status, body)
		}
		if list := p.get("/"); !strings.Contains(list, "There are no allocations in "+dir) {
			t.Errorf("the list is\n%s", list)
		}
	}
	if found != 4 {
		t.Errorf("docs/ui.md has %d commands", found)
	}
}

// hostileNames are those of a job that a user has from elsewhere.
const hostileNames = `
job "<u>alert(1)" {
  type = "batch"
  group "g'\"><img src=x onerror=alert(2)>" {
    task "t'\"><img src=x onerror=alert(3)>&task=%3Cb%3E #?;" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "echo run >> local/runs; echo started; exec sleep 1000"]
      }
    }
  }
}
`

// TestUIHostileNames: names are text, and the links of a task lead to that task.
func TestUIHostileNames(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), hostileNames)
	p := startUI(t, r)
	p.get(p.link())
	r.eventually("running", func() bool { return p.shows("/alloc/"+testAllocID, "/restart?task=") })
	sockets, err := filepath.Glob(r.allocDir("t*", "secrets", "api.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatal(sockets, err)
	}
	token := must.Read(t, filepath.Join(filepath.Dir(sockets[0]), "nomad_token"))
	c := must.Get(socket.Dial(t.Context(), sockets[0]))(t)
	fmt.Fprintf(c, "GET /v1/node/'%%22%%3E%%3Cimg%%3E HTTP/1.0\r\nX-Nomad-Token: %s\r\n\r\n", token)
	must.Get(io.ReadAll(c))(t)
	c.Close()
	text := p.get("/alloc/" + testAllocID)
	if !strings.Contains(text, "GET /v1/node/&#39;%22%3E%3Cimg%3E needs node:read") {
		t.Errorf("the page does not say what was refused:\n%s", text)
	}
	for _, page := range []string{p.get("/"), text} {
		if strings.Contains(page, "<img") || strings.Contains(page, "<u>alert") || strings.Contains(page, `'">`) {
			t.Errorf("a name is more than text:\n%s", page)
		}
	}
	found := regexp.MustCompile(`href="([^"]*/restart\?task=[^"]*)"`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("the task can't be restarted:\n%s", text)
	}
	link := html.UnescapeString(found[1])
	if ask := p.get(link); !strings.Contains(ask, `action="`+found[1]+`"`) {
		t.Errorf("%s asks\n%s", link, ask)
	}
	if got := p.post(link, nil); got != http.StatusSeeOther {
		t.Errorf("%s: %d", link, got)
	}
	runs, err := filepath.Glob(r.allocDir("t*", "local", "runs"))
	if err != nil || len(runs) != 1 {
		t.Fatal(runs, err)
	}
	r.eventually("restarted", func() bool { return countLines(runs[0]) == 2 })
}

// TestUIOfParent: the page of a job that starts children has its launches.
func TestUIOfParent(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), `job "tick" {
  type = "batch"
  periodic {
    crons = ["* * * * * * *"]
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config { command = "/bin/true" }
    }
  }
}`)
	p := startUI(t, r)
	p.get(p.link())
	r.eventually("launched", func() bool {
		return p.shows("/alloc/"+testAllocID, `<td>Launched<td class="wide">tick/periodic-`)
	})
}

// TestUIOpensBrowser: the browser's program gets a file that only the user can read, and not the link.
func TestUIOpensBrowser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		if _, err := exec.LookPath("setpriv"); err != nil {
			t.Skip("root starts no browser, and setpriv, which makes another user, is not installed")
		}
	}
	self, err := os.Executable()
	dir := shortDir(t)
	must.OK(t, err)
	fake := fmt.Sprintf("#!/bin/sh\ncd %s\n{ echo $# $1; stat -c '%%a %%u' $1; cat $1; } >part; mv part opened\n", dir)
	must.OK(t, os.Chmod(dir, 0o777))
	must.Program(t, filepath.Join(dir, "xdg-open"), []byte(fake))
	args := []string{self, "ui", "--data-dir", filepath.Join(dir, "data")}
	if os.Geteuid() == 0 {
		program := filepath.Join(dir, "taskapi") // where another user reads it
		if err := os.Link(self, program); err != nil {
			must.Program(t, program, must.Read(t, self))
		}
		args[0] = program
		args = append([]string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}, args...)
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "DISPLAY=:99", "TMPDIR=" + dir, "HOME=" + dir,
		"TASKAPI_TEST_MAIN=1"}
	var out polltest.Log
	cmd.Stdout, cmd.Stderr = &out, &out
	must.OK(t, cmd.Start())
	r := &running{t: t, code: make(chan int)}
	r.eventually("opened", func() bool { return written(filepath.Join(dir, "opened")) })
	must.OK(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
	opened, _ := os.ReadFile(filepath.Join(dir, "opened"))
	want := fmt.Sprintf("^1 %s/taskapi-ui-\\d+/open.html\n600 \\d+\n<meta .* content=\"0; url=%s\">\n$", dir, linked)
	if !regexp.MustCompile(want).Match(opened) {
		t.Errorf("the browser's program got %s", opened)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "taskapi-ui-*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
