package main

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// contrast lists texts of the page whose contrast to their background is below 4.5, WCAG's AA for small text.
const contrast = `(() => {
	const rgb = (text) => (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
	const linear = (v) => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
	const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const colour = rgb(getComputedStyle(e).backgroundColor);
			if (colour[3] !== 0) return colour;
		}
		return [255, 255, 255];
	};
	const bad = [];
	for (const e of document.body.querySelectorAll("*")) {
		if (!e.offsetParent || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
		const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) bad.push(ratio.toFixed(2) + " " + e.outerHTML.slice(0, 80));
	}
	return bad.join("\n");
})()`

// outside lists what is wider than the window.
const outside = `[document.documentElement, ...document.body.querySelectorAll("*")]
	.filter((e) => e.offsetParent && e.getBoundingClientRect().right > innerWidth + 0.5 || e.scrollWidth > innerWidth)
	.map((e) => e.outerHTML.slice(0, 80)).join("\n")`

// TestUIInBrowser reads, follows and acts in Chromium, with scripts and without, and attacks the page from others.
func TestUIInBrowser(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	r := startRun(t, shortDir(t), uiJob)
	p := startUI(t, r)
	b.looks(1280, "light")
	link := p.link()
	b.open(link)
	b.until(`document.querySelector("h1")?.textContent === "Allocations"`)
	at := strings.TrimSuffix(link, link[strings.Index(link, "/open"):])
	if got := b.get("location.href"); got != at+"/" {
		t.Errorf("after the link the browser is at %s", got)
	}
	if got := b.get("document.cookie"); got != "" {
		t.Errorf("a script reads the cookie %s", got)
	}
	b.until(`document.querySelector("#allocs a")?.textContent === "shop.web[0]"`)
	b.get(`document.querySelector("#allocs a").click()`)

	b.until(`document.querySelector("#output")?.textContent.includes("packed an order")`)
	b.until(`document.querySelectorAll("#tasks polyline")[1]?.points.length > 2`) // it was refreshed
	b.until(`document.querySelector("#checks")?.textContent.includes("no <b>stock</b>")`)
	for _, width := range []int{390, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			b.looks(width, scheme)
			if bad := b.get(contrast); bad != "" {
				t.Errorf("at %d, %s, the contrast is too low of\n%s", width, scheme, bad)
			}
			if bad := b.get(outside); bad != "" {
				t.Errorf("at %d this is outside of the window:\n%s", width, bad)
			}
		}
	}

	b.get(`document.getElementById("restart-server").focus()`)
	b.get(`document.getElementById("tasks").append("old")`)
	b.get(`document.getElementById("restart-server").focus()`)
	b.until(`!document.getElementById("tasks").textContent.endsWith("old")`) // a refresh
	b.until(`document.activeElement.id === "restart-server"`)
	b.key("Tab") // the focus is seen
	b.until(`document.activeElement.id === "signal-server"`)
	b.until(`getComputedStyle(document.activeElement).outlineStyle === "solid"`)
	b.key("Enter")
	b.until(`document.querySelector("select")?.value === "SIGHUP"`)
	b.get(`document.querySelector("select").value = "SIGUSR1"`)
	b.get(`document.querySelector("button").click()`)
	b.until(`document.querySelector("#output")?.textContent.includes("reloaded")`)
	b.until(`document.querySelector("#facts")?.textContent.includes("SIGUSR1 task \"server\"")`)
	got := b.get(`document.querySelectorAll("#output script, #output img, #checks b").length + document.title`)
	if got != "0shop.web[0] – taskapi" {
		t.Errorf("what a task wrote is more than text: %s", got)
	}

	// Another program's page, on another port, and on a name of its own that points here.
	evil := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	requests := make(chan *http.Request, 100)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>evil</title><iframe id="frame" src="%[1]s/"></iframe>
			<form method="post" action="%[1]s/alloc/%[2]s/stop"></form><script>
			document.loaded = fetch("%[1]s/", {credentials: "include", mode: "no-cors"})
				.then((r) => "got " + r.type, () => "refused")</script>`, at, testAllocID)
	})}
	go func() { _ = server.Serve(evil) }() // until Close
	defer server.Close()
	for _, host := range []string{"127.0.0.1", "localhost", "evil.localhost"} {
		b.open("http://" + strings.Replace(evil.Addr().String(), "127.0.0.1", host, 1))
		b.until(`document.title === "evil" && document.readyState === "complete"`)
		if got := b.get("document.loaded"); got != "refused" {
			t.Errorf("a page of %s loads a part of the page: %s", host, got)
		}
		if got := b.get(`String(document.getElementById("frame").contentDocument)`); got != "null" {
			t.Errorf("a page of %s reads its frame: %s", host, got)
		}
		b.get(`document.querySelector("form").submit()`)
		b.until(`document.body.textContent.includes("another page has sent this request")`)
		for len(requests) > 0 {
			if got := (<-requests).Header.Get("Cookie"); got != "" {
				t.Errorf("%s gets the cookie %s", host, got)
			}
		}
	}

	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	b.open(at + "/alloc/" + testAllocID)
	b.until(`document.querySelector("#output")?.textContent.includes("GET /articles/1 200")`)
	b.get(`document.getElementById("stop").click()`)
	b.until(`document.querySelector("h1")?.textContent.startsWith("Stop allocation")`)
	b.get(`document.querySelector("button").click()`)
	b.until(`document.querySelector("#facts")?.textContent.includes("stop allocation")`)
	code := <-r.code // the page has stopped it
	r.code <- code

	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": false}, nil)
	b.open(at + "/")
	b.until(`document.querySelector("#allocs")?.textContent.includes("complete")`)
	for said := range strings.Lines(b.said()) { // also of the refusals above, whose text has no icon
		refused := strings.Contains(said, "NotSameOrigin") || strings.Contains(said, "403")
		if strings.Contains(said, `"url":"`+at) && !refused && !strings.Contains(said, "/favicon.ico") {
			t.Errorf("the browser said: %s", said)
		}
	}
}
