package consultest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"taskapi/internal/wake"

	capi "github.com/hashicorp/consul/api"
)

var statuses = []string{capi.HealthPassing, capi.HealthWarning, capi.HealthCritical}

// checkDefinition refuses what an agent refuses, and what an agent would have to guess.
func checkDefinition(c *capi.AgentServiceCheck) error {
	kinds := slices.DeleteFunc([]string{c.HTTP, c.TCP, c.GRPC, c.TTL}, func(kind string) bool { return kind == "" })
	if len(kinds) != 1 || len(c.Args) > 0 {
		return errors.New("invalid check: it must be exactly one of HTTP, TCP, GRPC and TTL")
	}
	if c.CheckID == "" || c.Name == "" {
		return errors.New("invalid check: it has no ID or no name")
	}
	if c.Status != "" && !slices.Contains(statuses, c.Status) {
		return fmt.Errorf("bad check status: %q", c.Status)
	}
	times := []string{c.Interval, c.Timeout}
	if c.TTL != "" {
		times = []string{c.TTL}
	}
	for _, text := range times {
		if duration(text) <= 0 || c.TTL != "" && c.Interval != "" {
			return fmt.Errorf("interval and timeout, or the TTL alone, must be > 0: %q", text)
		}
	}
	return nil
}

func (a *Agent) registerCheck(r *http.Request) (any, error) {
	var reg capi.AgentCheckRegistration
	if err := decode(r, &reg); err != nil {
		return nil, err
	}
	if reg.CheckID != "" {
		return nil, fmt.Errorf("request decode failed: json: unknown field %q", "CheckID") // which a service's check has
	}
	reg.CheckID, reg.AgentServiceCheck.Name, reg.AgentServiceCheck.Notes = reg.ID, reg.Name, reg.Notes
	if err := checkDefinition(&reg.AgentServiceCheck); err != nil {
		return nil, err
	}
	s := a.services[reg.ServiceID]
	if s == nil {
		return nil, failure{http.StatusNotFound, fmt.Sprintf("ServiceID %q does not exist", reg.ServiceID)}
	}
	if err := a.mayLocked(tokenOf(r), s.Service); err != nil {
		return nil, err
	}
	a.addLocked(reg.CheckID, s, tokenOf(r), reg.AgentServiceCheck)
	return nil, nil
}

// check returns the check that a request names. Errors: there is none; the token may not write it.
func (a *Agent) check(r *http.Request) (*made, error) {
	c := a.checks[r.PathValue("id")]
	if c == nil {
		return nil, failure{http.StatusNotFound, fmt.Sprintf("Unknown check ID %q", r.PathValue("id"))}
	}
	return c, a.mayLocked(tokenOf(r), c.ServiceName)
}

func (a *Agent) deregisterCheck(r *http.Request) (any, error) {
	c, err := a.check(r)
	if err != nil {
		return nil, err
	}
	a.dropLocked(func(other *made) bool { return other == c })
	return nil, nil
}

// updateCheck takes the result of a check that is fed.
func (a *Agent) updateCheck(r *http.Request) (any, error) {
	var update struct{ Status, Output string }
	if err := decode(r, &update); err != nil {
		return nil, err
	}
	if !slices.Contains(statuses, update.Status) {
		return nil, fmt.Errorf("invalid check status: %q", update.Status)
	}
	c, err := a.check(r)
	if err != nil {
		return nil, err
	}
	if c.expiry == nil {
		return nil, failure{http.StatusNotFound, fmt.Sprintf("CheckID %q does not have associated TTL", c.CheckID)}
	}
	a.setLocked(c, update.Status, update.Output)
	c.expiry.Reset(duration(c.definition.TTL))
	return nil, nil
}

// setLocked notes the result of a check, and copies the status into the catalog if the token with which the check was
// registered allows it.
func (a *Agent) setLocked(c *made, status, output string) {
	c.Status, c.Output = status, output
	if a.mayLocked(c.token, c.ServiceName) == nil {
		c.published = status
		a.changeLocked()
	}
}

// addLocked begins a check. One that is there already keeps its status.
func (a *Agent) addLocked(id string, s *capi.AgentService, token string, d capi.AgentServiceCheck) {
	c := &made{definition: d, token: token, AgentCheck: capi.AgentCheck{
		Node: "node", CheckID: id, Name: d.Name, Notes: d.Notes, ServiceID: s.ID, ServiceName: s.Service,
	}}
	status, output := cmp.Or(d.Status, capi.HealthCritical), ""
	if before := a.checks[id]; before != nil {
		before.end()
		status, output, c.published = before.Status, before.Output, before.published
	}
	a.checks[id] = c
	a.setLocked(c, status, output)
	if d.TTL != "" {
		c.expiry = time.AfterFunc(duration(d.TTL), func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.setLocked(c, capi.HealthCritical, "TTL expired (last output before timeout follows): "+c.Output)
		})
		c.end = func() { c.expiry.Stop() }
		return
	}
	var ctx context.Context
	ctx, c.end = context.WithCancel(context.Background())
	a.running.Go(func() { a.repeat(ctx, c) })
}

// duration returns the duration that a text says, 0 for another text.
func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}

// repeat makes a check again and again.
func (a *Agent) repeat(ctx context.Context, c *made) {
	for {
		status, output := capi.HealthPassing, "success"
		if err := run(ctx, c.definition); err != nil {
			status, output = capi.HealthCritical, err.Error()
		}
		a.mu.Lock()
		if ctx.Err() == nil {
			a.setLocked(c, status, output)
		}
		a.mu.Unlock()
		if wake.Sleep(ctx, duration(c.definition.Interval)) != nil {
			return
		}
	}
}

// run makes a check once, and returns the reason why it fails.
func run(ctx context.Context, d capi.AgentServiceCheck) error {
	ctx, cancel := context.WithTimeout(ctx, duration(d.Timeout))
	defer cancel()
	transport := &http.Transport{Protocols: new(http.Protocols), DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	switch {
	case d.TCP != "":
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", d.TCP)
		if err == nil {
			conn.Close()
		}
		return err
	case d.HTTP != "":
		transport.Protocols.SetHTTP1(true)
		resp, body, err := ask(ctx, transport, cmp.Or(d.Method, http.MethodGet), d.HTTP, d.Body, d.Header)
		if err == nil && resp.StatusCode >= 300 {
			err = fmt.Errorf("HTTP %s: %s Output: %s", d.HTTP, resp.Status, body)
		}
		return err
	}
	// grpc.health.v1.Health/Check without a library: its request is the name of a service, its answer one number.
	transport.Protocols.SetUnencryptedHTTP2(true)
	address, service, _ := strings.Cut(d.GRPC, "/")
	message := string([]byte{0, 0, 0, 0, byte(len(service) + 2), 0x0a, byte(len(service))}) + service
	resp, body, err := ask(ctx, transport, http.MethodPost, "http://"+address+"/grpc.health.v1.Health/Check", message,
		http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}})
	if err == nil && (resp.Trailer.Get("Grpc-Status") != "0" || !bytes.Equal(body, []byte{0, 0, 0, 0, 2, 0x08, 1})) {
		err = fmt.Errorf("gRPC check %s: it does not serve", d.GRPC)
	}
	return err
}

func ask(
	ctx context.Context, by http.RoundTripper, method, url, body string, header http.Header,
) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(req.Header, header)
	resp, err := by.RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	return resp, answer, err
}
