package consultest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"
)

var statuses = []string{capi.HealthPassing, capi.HealthWarning, capi.HealthCritical}

// checkDefinition refuses what an agent refuses, and what an agent would have to guess.
func checkDefinition(c *capi.AgentServiceCheck) error {
	kinds := slices.DeleteFunc([]string{c.HTTP, c.TCP, c.GRPC, c.TTL}, func(kind string) bool { return kind == "" })
	if len(kinds) != 1 || len(c.Args) > 0 || c.UDP != "" || c.H2PING != "" || c.AliasService != "" ||
		c.DockerContainerID != "" {
		return invalid("Invalid check: it must be exactly one of HTTP, TCP, GRPC and TTL")
	}
	if c.FailuresBeforeWarning > c.FailuresBeforeCritical {
		return invalid("Invalid check: FailuresBeforeWarning can't be higher than FailuresBeforeCritical")
	}
	if c.CheckID == "" || c.Name == "" {
		return invalid("Invalid check: it has no ID or no name")
	}
	if c.Status != "" && !slices.Contains(statuses, c.Status) {
		return invalid("Bad check status: %q", c.Status)
	}
	if c.TTL != "" {
		if ttl, err := time.ParseDuration(c.TTL); err != nil || ttl <= 0 || c.Interval != "" {
			return invalid("Interval and TTL cannot both be specified, and the TTL must be above 0")
		}
		return nil
	}
	for _, text := range []string{c.Interval, c.Timeout} {
		if d, err := time.ParseDuration(text); err != nil || d <= 0 {
			return invalid("Interval and timeout must be > 0: %q", text)
		}
	}
	return nil
}

func (a *Agent) registerCheck(_ string, r *http.Request) (any, error) {
	var reg capi.AgentCheckRegistration
	if err := decode(r, &reg); err != nil {
		return nil, err
	}
	if reg.CheckID != "" {
		return nil, invalid("Request decode failed: json: unknown field %q", "CheckID") // which a service's check has
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

func (a *Agent) deregisterCheck(id string, r *http.Request) (any, error) {
	c := a.checks[id]
	if c == nil {
		return nil, failure{http.StatusNotFound, fmt.Sprintf("Unknown check ID %q", id)}
	}
	if err := a.mayLocked(tokenOf(r), c.ServiceName); err != nil {
		return nil, err
	}
	c.stop()
	delete(a.checks, id)
	return nil, nil
}

// updateCheck takes the result of a check that is fed.
func (a *Agent) updateCheck(id string, r *http.Request) (any, error) {
	var update struct{ Status, Output string }
	if err := decode(r, &update); err != nil {
		return nil, err
	}
	if !slices.Contains(statuses, update.Status) {
		return nil, invalid("Invalid check status: %q", update.Status)
	}
	c := a.checks[id]
	if c == nil || c.expiry == nil {
		return nil, failure{http.StatusNotFound,
			fmt.Sprintf("CheckID %q does not have associated TTL: Unknown check", id)}
	}
	if err := a.mayLocked(tokenOf(r), c.ServiceName); err != nil {
		return nil, err
	}
	c.Status, c.Output = update.Status, update.Output
	a.publishLocked(c)
	c.expiry.Reset(duration(c.definition.TTL))
	return nil, nil
}

// addLocked begins a check. One that is there already keeps its status.
func (a *Agent) addLocked(id string, s *capi.AgentService, token string, d capi.AgentServiceCheck) {
	c := &made{definition: d, token: token, AgentCheck: capi.AgentCheck{
		Node: "node", CheckID: id, Name: d.Name, Notes: d.Notes, ServiceID: s.ID, ServiceName: s.Service,
		Status: cmp.Or(d.Status, capi.HealthCritical),
	}}
	if before := a.checks[id]; before != nil {
		before.stop()
		c.Status, c.Output, c.published = before.Status, before.Output, before.published
	}
	a.checks[id] = c
	a.publishLocked(c)
	if d.TTL != "" {
		c.expiry = time.AfterFunc(duration(d.TTL), func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			c.Status, c.Output = capi.HealthCritical, "TTL expired (last output before timeout follows): "+c.Output
			a.publishLocked(c)
		})
		return
	}
	var ctx context.Context
	ctx, c.end = context.WithCancel(a.ctx)
	a.running.Go(func() { a.repeat(ctx, c) })
}

func (c *made) stop() {
	if c.end != nil {
		c.end()
	}
	if c.expiry != nil {
		c.expiry.Stop()
	}
}

func duration(text string) time.Duration {
	d, _ := time.ParseDuration(text) // checkDefinition has parsed it
	return d
}

// repeat makes a check again and again, the first time soon.
func (a *Agent) repeat(ctx context.Context, c *made) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		status, output := run(ctx, c.definition)
		if ctx.Err() != nil {
			return
		}
		a.mu.Lock()
		c.result(status, output)
		a.publishLocked(c)
		a.mu.Unlock()
		timer.Reset(duration(c.definition.Interval))
	}
}

// result applies the thresholds of a check.
func (c *made) result(status, output string) {
	if status == capi.HealthCritical {
		c.row = min(c.row, 0) - 1
	} else {
		c.row = max(c.row, 0) + 1
	}
	if c.row > 0 && c.row >= c.definition.SuccessBeforePassing ||
		c.row < 0 && -c.row >= c.definition.FailuresBeforeCritical {
		c.Status = status
	}
	c.Output = output
}

func run(ctx context.Context, d capi.AgentServiceCheck) (status, output string) {
	ctx, cancel := context.WithTimeout(ctx, duration(d.Timeout))
	defer cancel()
	switch {
	case d.TCP != "":
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", d.TCP)
		if err != nil {
			return capi.HealthCritical, err.Error()
		}
		conn.Close()
		return capi.HealthPassing, "TCP connect " + d.TCP + ": Success"
	case d.GRPC != "":
		return runGRPC(ctx, d)
	}
	return runHTTP(ctx, d)
}

func runHTTP(ctx context.Context, d capi.AgentServiceCheck) (status, output string) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{ServerName: d.TLSServerName,
			InsecureSkipVerify: d.TLSSkipVerify},
	}}
	req, err := http.NewRequestWithContext(ctx, cmp.Or(d.Method, http.MethodGet), d.HTTP, strings.NewReader(d.Body))
	if err != nil {
		return capi.HealthCritical, err.Error()
	}
	maps.Copy(req.Header, d.Header)
	resp, err := client.Do(req)
	if err != nil {
		return capi.HealthCritical, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // of an answer that breaks off, what has come
	output = fmt.Sprintf("HTTP %s %s: %s Output: %s", req.Method, d.HTTP, resp.Status, body)
	switch {
	case resp.StatusCode < 300:
		return capi.HealthPassing, output
	case resp.StatusCode == http.StatusTooManyRequests:
		return capi.HealthWarning, output
	}
	return capi.HealthCritical, output
}

// runGRPC calls grpc.health.v1.Health/Check without a library: its request is the name of a service, its answer one
// number.
func runGRPC(ctx context.Context, d capi.AgentServiceCheck) (status, output string) {
	address, service, _ := strings.Cut(d.GRPC, "/")
	transport := &http.Transport{Protocols: new(http.Protocols), DisableKeepAlives: true}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	message := append([]byte{0x0a, byte(len(service))}, service...)
	if service == "" {
		message = nil
	}
	frame := append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/grpc.health.v1.Health/Check",
		bytes.NewReader(frame))
	if err != nil {
		return capi.HealthCritical, err.Error()
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return capi.HealthCritical, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64))
	serving := err == nil && bytes.Equal(body, []byte{0, 0, 0, 0, 2, 0x08, 1})
	if code := cmp.Or(resp.Trailer.Get("Grpc-Status"), resp.Header.Get("Grpc-Status")); code != "0" || !serving {
		return capi.HealthCritical, "gRPC status " + code
	}
	return capi.HealthPassing, "gRPC check " + d.GRPC + ": success"
}

// Status returns that of a check; empty for one that there is not.
func (a *Agent) Status(checkID string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.checks[checkID]; c != nil {
		return c.Status
	}
	return ""
}
