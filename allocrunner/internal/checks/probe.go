package checks

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// maxOutput is how much of an answer is kept, Nomad's number. No more of it is read.
const maxOutput = 3 << 10

// maxRedirects is net/http's own limit, and Nomad's.
const maxRedirects = 10

// maxHeader bounds the head of an answer: a check has no use for more than its status.
const maxHeader = 64 << 10

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// tcpProbe succeeds when somebody accepts.
func tcpProbe(dial dialFunc, address string) func(context.Context) outcome {
	return func(ctx context.Context) outcome {
		conn, err := dial(ctx, "tcp", address)
		if err != nil {
			return outcome{status: failure, output: err.Error()}
		}
		conn.Close() // connecting was the check
		return outcome{status: success, output: "nomad: tcp ok"}
	}
}

// httpProbe sends one request.
type httpProbe struct {
	client *http.Client
	method string
	url    string
	header http.Header
	body   []byte
}

// newClient makes a client that keeps no connection, uses no proxy of ours and no cookies.
func newClient(dial dialFunc, c api.ServiceCheck) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dial,
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: maxHeader,
			TLSClientConfig: &tls.Config{
				InsecureSkipVerify: c.TLSSkipVerify, // the job asks for it: the check then only shows that something answers
				ServerName:         c.TLSServerName,
			},
		},
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) >= maxRedirects {
				return fmt.Errorf("stopped after %d redirects", maxRedirects)
			}
			return nil
		},
	}
}

func (p *httpProbe) run(ctx context.Context) outcome {
	req, err := http.NewRequestWithContext(ctx, p.method, p.url, bytes.NewReader(p.body))
	if err != nil {
		return outcome{status: failure, output: "nomad: " + err.Error()}
	}
	req.Header = p.header.Clone()
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return outcome{status: failure, output: "nomad: " + err.Error()}
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return outcome{status: success, code: resp.StatusCode, output: "nomad: http ok"}
	}
	o := outcome{status: success, code: resp.StatusCode, output: excerpt(resp.Body)}
	if resp.StatusCode >= http.StatusBadRequest {
		o.status = failure
	}
	return o
}

// excerpt is the beginning of an answer. One that breaks off is shown as far as it came. What is no UTF-8, a character cut at the
// end among it, could not be shown in JSON.
func excerpt(body io.Reader) string {
	data, err := io.ReadAll(io.LimitReader(body, maxOutput))
	if err != nil && len(data) == 0 {
		return "nomad: " + err.Error()
	}
	return strings.ToValidUTF8(string(data), "")
}
