package checks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// maxOutput is how much of an answer is read and kept: Nomad's number.
const maxOutput = 3 << 10

// maxRedirects is net/http's own limit, and Nomad's.
const maxRedirects = 10

// maxHeader limits the head of an answer. A check needs only the status.
const maxHeader = 64 << 10

// connBuffer is the size of the buffers of a connection, which carries one request and the head of its answer. The 4
// KiB that net/http takes would be most of the memory of a run.
const connBuffer = 1 << 10

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// tcpProbe succeeds if the connection is accepted.
func tcpProbe(dial dialFunc, address string) func(context.Context) outcome {
	return func(ctx context.Context) outcome {
		conn, err := dial(ctx, "tcp", address)
		if err != nil {
			return failed(err.Error())
		}
		conn.Close() // connecting was the check
		return outcome{ok: true, output: "nomad: tcp ok"}
	}
}

// clients are shared by checks with the same TLS settings. They keep no connections and no cookies and use no proxy, so
// that sharing makes no difference.
type clients map[tlsOf]*http.Client

type tlsOf struct {
	skipVerify bool
	serverName string
}

func (c clients) of(check api.ServiceCheck, dial dialFunc) *http.Client {
	key := tlsOf{check.TLSSkipVerify, check.TLSServerName}
	if client := c[key]; client != nil {
		return client
	}
	c[key] = &http.Client{
		Transport: &http.Transport{
			DialContext:            dial,
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: maxHeader,
			ReadBufferSize:         connBuffer,
			WriteBufferSize:        connBuffer,
			TLSClientConfig: &tls.Config{
				// The job asks for it: the check then only shows that something answers.
				InsecureSkipVerify: key.skipVerify,
				ServerName:         key.serverName,
			},
		},
		CheckRedirect: checkRedirect,
	}
	return c[key]
}

// checkRedirect follows redirects only within the service. A redirect to another host or port is itself the answer: a
// service must not make this process send requests to other addresses of the machine.
func checkRedirect(next *http.Request, via []*http.Request) error {
	switch {
	case next.URL.Host != via[0].URL.Host || next.URL.Scheme != via[0].URL.Scheme:
		return http.ErrUseLastResponse
	case len(via) >= maxRedirects:
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

// newHTTPProbe returns a probe that sends the same request each time. The error is about a request that can't be made.
func newHTTPProbe(client *http.Client, c api.ServiceCheck, address,
	version string) (func(context.Context) outcome, error) {
	target, err := (&url.URL{Scheme: cmp.Or(c.Protocol, "http"), Host: address}).Parse(c.Path)
	if err != nil {
		return nil, err
	}
	template, err := http.NewRequest(c.Method, target.String(), nil)
	if err != nil {
		return nil, err
	}
	template.Header = header(c.Header, version)
	template.Host = cmp.Or(template.Header.Get("Host"), template.Host)
	body := []byte(c.Body)
	return func(ctx context.Context) outcome {
		req := template.WithContext(ctx) // shares the header, which sending does not change
		if len(body) > 0 {
			req.ContentLength = int64(len(body))
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
			req.Body, _ = req.GetBody()
		}
		return sendHTTP(client, req)
	}, nil
}

// header has the check's own headers, which may replace our User-Agent.
func header(own map[string][]string, version string) http.Header {
	h := http.Header{}
	h.Set("User-Agent", "taskapi/"+cmp.Or(version, "unknown"))
	for key, values := range own {
		h.Del(key)
		for _, v := range values {
			h.Add(key, v)
		}
	}
	return h
}

func sendHTTP(client *http.Client, req *http.Request) outcome {
	resp, err := client.Do(req)
	if err != nil {
		// Tasks that may not see the query of the check can see this error.
		if e, ok := errors.AsType[*url.Error](err); ok {
			e.URL, _, _ = strings.Cut(e.URL, "?")
		}
		return failed("nomad: " + err.Error())
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return outcome{ok: true, code: resp.StatusCode, output: "nomad: http ok"}
	}
	o := outcome{ok: resp.StatusCode < http.StatusBadRequest, code: resp.StatusCode}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if o.output = shown(data); err != nil && len(data) == 0 {
		o.output = "nomad: " + err.Error()
	}
	return o
}

// shown returns the beginning of data as UTF-8 text. It drops what is not UTF-8, such as a character that is cut at the
// end.
func shown(data []byte) string {
	return strings.ToValidUTF8(string(data[:min(len(data), maxOutput)]), "")
}

// exitWarning is Consul's exit code for a warning. Here it counts as a failure.
const exitWarning = 1

// scriptProbe runs the check's command in its task.
func scriptProbe(exec ExecFunc, c api.ServiceCheck) func(context.Context) outcome {
	command := append([]string{c.Command}, c.Args...)
	return func(ctx context.Context) outcome {
		result, err := exec(ctx, c.TaskName, command)
		text := shown(result.Output)
		switch {
		case err == nil && result.Code == 0:
			return outcome{ok: true, output: text}
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return failed(strings.TrimSuffix(fmt.Sprintf("nomad: the command ran longer than its timeout of %v and was "+
				"killed\n%s", c.Timeout, text), "\n"))
		case err != nil:
			return failed("nomad: " + err.Error())
		}
		return outcome{warning: result.Code == exitWarning,
			output: cmp.Or(text, fmt.Sprintf("nomad: exit code %d", result.Code))}
	}
}
