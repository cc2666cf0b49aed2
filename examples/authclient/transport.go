package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// attempts bounds how often a request is sent.
	attempts = 5
	// pause is for a server that does not say when to come back.
	pause = time.Second
	// maxPause bounds what a server can say.
	maxPause = time.Minute
	// answerTimeout is how long the head of an answer may take.
	answerTimeout = 10 * time.Second
)

// transport sends requests to a task's socket with the task's token. The token is read for each attempt, since its file
// is replaced when half of its life is over, and at once when its key is removed. A request that only reads is sent
// again when the server is busy, after the time that it asks for.
type transport struct {
	tokenFile string
	socket    *http.Transport
	wait      func(ctx context.Context, d time.Duration) error
}

func newTransport(socket, tokenFile string) *transport {
	return &transport{
		tokenFile: tokenFile,
		socket: &http.Transport{
			ResponseHeaderTimeout: answerTimeout,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		},
		wait: sleep,
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *transport) client() *http.Client { return &http.Client{Transport: t} }

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (t *transport) CloseIdleConnections() { t.socket.CloseIdleConnections() }

// RoundTrip sends a request, if need be more than once.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		token, err := t.token()
		if err != nil {
			return nil, err
		}
		try := r.Clone(r.Context())
		try.Header.Set("X-Nomad-Token", token)
		response, err := t.socket.RoundTrip(try)
		if attempt == attempts || r.Method != http.MethodGet {
			return response, err
		}
		delay, again := t.retry(response, err, token)
		if !again {
			return response, err
		}
		if response != nil {
			_, _ = io.Copy(io.Discard, response.Body) // so that the connection can be used again
			_ = response.Body.Close()
		}
		if err := t.wait(r.Context(), delay); err != nil {
			return nil, err
		}
	}
}

// retry reports whether to try again after an answer, and when. A refusal is final, unless the token was replaced
// meanwhile.
func (t *transport) retry(response *http.Response, err error, token string) (delay time.Duration, again bool) {
	if err != nil {
		return pause, true
	}
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
		if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds >= 0 {
			return min(time.Duration(seconds)*time.Second, maxPause), true
		}
		return pause, true
	case http.StatusForbidden:
		now, err := t.token()
		return 0, err == nil && now != token
	}
	return 0, false
}

func (t *transport) token() (string, error) {
	content, err := os.ReadFile(t.tokenFile)
	return strings.TrimSpace(string(content)), err
}
