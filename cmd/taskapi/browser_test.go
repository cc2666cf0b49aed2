package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// browser is a headless Chromium with one tab, which a test drives over the pipes of the DevTools protocol.
type browser struct {
	t       *testing.T
	out     *os.File
	session string

	mu      sync.Mutex // guards the fields below
	last    int
	answers map[int]chan json.RawMessage
	told    []string // texts of the console and of blocked loads
}

// message is a message of the protocol, either way.
type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    any             `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
}

// newBrowser starts Chromium. A machine without it skips the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	in, toBrowser, err1 := os.Pipe()
	fromBrowser, out, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	home := t.TempDir()
	cmd := exec.Command(program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--no-proxy-server", "--hide-scrollbars", "--user-data-dir="+home, "about:blank")
	cmd.ExtraFiles = []*os.File{in, out}
	cmd.Env = append(os.Environ(), "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Skipf("chromium does not start: %v", err)
	}
	in.Close()
	out.Close()
	b := &browser{t: t, out: toBrowser, answers: map[int]chan json.RawMessage{}}
	read := make(chan struct{})
	go func() { defer close(read); b.read(fromBrowser) }()
	t.Cleanup(func() {
		toBrowser.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with its helpers
		_ = cmd.Wait()
		fromBrowser.Close()
		<-read
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// read takes what the browser says, until it ends.
func (b *browser) read(from *os.File) {
	in := bufio.NewReader(from)
	for {
		text, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch answer := b.answers[m.ID]; {
		case answer != nil && m.Error != nil:
			answer <- m.Error
		case answer != nil:
			answer <- m.Result
		case m.Method == "Log.entryAdded", m.Method == "Runtime.exceptionThrown", m.Method == "Page.javascriptDialogOpening":
			b.told = append(b.told, string(text[:len(text)-1]))
		}
		delete(b.answers, m.ID)
		b.mu.Unlock()
	}
}

// call sends a command and returns its result.
func (b *browser) call(method string, params, into any) {
	b.t.Helper()
	answer := make(chan json.RawMessage, 1)
	b.mu.Lock()
	b.last++
	m := message{ID: b.last, SessionID: b.session, Method: method, Params: params}
	b.answers[m.ID] = answer
	b.mu.Unlock()
	text := must.Get(json.Marshal(m))(b.t)
	if _, err := b.out.Write(append(text, 0)); err != nil {
		b.t.Fatal(err)
	}
	select {
	case result := <-answer:
		if bytes.HasPrefix(result, []byte(`{"code"`)) {
			b.t.Fatalf("%s: %s", method, result)
		}
		if into != nil {
			must.OK(b.t, json.Unmarshal(result, into))
		}
	case <-time.After(deadline):
		b.t.Fatalf("%s: no answer; the browser said: %s", method, b.said())
	}
}

// said returns what the console has, and dialogs.
func (b *browser) said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.told, "\n")
}

// open goes to an address.
func (b *browser) open(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url}, nil)
}

// get returns the value of an expression in the page, "" while there is no page.
func (b *browser) get(expression string) string {
	b.t.Helper()
	var got struct {
		Result struct{ Value any }
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &got)
	if got.Result.Value == nil {
		return ""
	}
	return fmt.Sprint(got.Result.Value)
}

// until waits until an expression in the page is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	if !polltest.Until(func() bool { return b.get(expression) == "true" }) {
		b.t.Fatalf("never %s; the page is:\n%s\nthe browser said: %s", expression, b.get("document.body.innerText"), b.said())
	}
}

// looks makes the window of a width, light or dark.
func (b *browser) looks(width int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 844, "deviceScaleFactor": 1,
		"mobile": width < 500}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{
		map[string]any{"name": "prefers-color-scheme", "value": scheme},
		map[string]any{"name": "prefers-reduced-motion", "value": "reduce"},
	}}, nil)
}

// picture returns the page as a PNG, up to a height.
func (b *browser) picture(width, height int) []byte {
	b.t.Helper()
	var got struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true,
		"clip": map[string]any{"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}, &got)
	return must.Get(base64.StdEncoding.DecodeString(got.Data))(b.t)
}

// key presses a key.
func (b *browser) key(name string) {
	b.t.Helper()
	code := map[string]int{"Tab": 9, "Enter": 13}[name]
	text := map[string]string{"Enter": "\r"}[name]
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": name, "code": name,
			"windowsVirtualKeyCode": code, "text": text}, nil)
		text = ""
	}
}
