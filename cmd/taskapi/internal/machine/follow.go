package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/identity/workload"
	"taskapi/internal/wake"
	"taskapi/socket"
)

const (
	// changeWait is how long an allocation's process waits for a change before it answers: as long as it does.
	changeWait = 10 * time.Minute
	// resumeGrace is how long an allocation stays without a taskapi before it is resumed, so that its service manager, or
	// a takeover by another taskapi, comes first.
	resumeGrace = 3 * time.Second
	// mostResumes is how often in a row an allocation is resumed whose taskapi exits again within steadyTime.
	mostResumes = 8
	steadyTime  = time.Minute
	// dialTime bounds how long a connection to an allocation's process may take.
	dialTime = 5 * time.Second
	// pollInterval is how often directories are looked at without inotify: a user may have a bounded number of instances.
	pollInterval = time.Second
)

// followLocked follows an allocation until it has ended or its directory is gone.
func (m *Machine) followLocked(ctx context.Context, id string) {
	m.follows.Go(func() { m.follow(ctx, id) })
}

func (m *Machine) follow(ctx context.Context, id string) {
	pause := wake.Backoff{First: client.Pause, Last: 30 * time.Second}
	var resumes int
	var said bool // that its state is damaged
	for ctx.Err() == nil && m.has(id) {
		found := m.locate(ctx, id)
		switch found.Holder {
		case client.Ended:
			m.set(id, found.Alloc, true)
			return
		case client.Serving:
			if interfaces.Ended(found.Alloc) { // the process exits when nobody asks any more
				m.set(id, found.Alloc, false)
				_ = pause.Sleep(ctx)
				continue
			}
			pause.Reset()
			since := time.Now()
			m.serving(ctx, id, found.Alloc)
			if time.Since(since) > steadyTime {
				resumes = 0
			}
		case client.Nobody:
			m.set(id, found.Alloc, false)
			if wake.Sleep(ctx, resumeGrace<<min(resumes, mostResumes)) != nil {
				return
			}
			if now := m.locate(ctx, id); now.Holder != client.Nobody {
				continue
			}
			if !m.cfg.Resume || resumes == mostResumes {
				m.awaitChange(ctx, id)
				continue
			}
			resumes++
			m.resume(ctx, id, found.Alloc.Name)
			if resumes == mostResumes {
				m.cfg.Logger.Error("an allocation's taskapi exits again and again: it is not resumed any more; "+
					"see taskapi.log in its directory, and 'taskapi takeover'", "alloc", id, "name", found.Alloc.Name)
			}
		case client.Unreadable: // or it begins
			if !said && !errors.Is(found.Err, state.ErrNotFound) {
				said = true
				m.cfg.Logger.Error("an allocation is not listed, as its saved state can't be read: 'taskapi state repair' keeps "+
					"what can be read", "alloc", id, "error", found.Err)
			}
			_ = pause.Sleep(ctx)
		default: // it ends or hangs
			_ = pause.Sleep(ctx)
		}
	}
}

// locate says who runs an allocation.
func (m *Machine) locate(ctx context.Context, id string) client.Location {
	c := client.New(m.cfg.Dir, id)
	defer c.Close()
	return c.Locate(ctx, client.Timeouts{})
}

// has reports whether an allocation's directory is there.
func (m *Machine) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[id] != nil
}

// serving follows an allocation while its process answers.
func (m *Machine) serving(ctx context.Context, id string, alloc *api.Allocation) {
	for {
		m.set(id, alloc, false)
		next, err := m.next(ctx, id, alloc.ModifyIndex)
		if err != nil {
			return
		}
		if interfaces.Ended(next) {
			m.set(id, next, false)
			m.http.CloseIdleConnections() // the process exits when its clients are gone
			_ = wake.Sleep(ctx, client.Pause)
			return
		}
		alloc = next
	}
}

// next returns the allocation once its index is above the given one, or after a while.
func (m *Machine) next(ctx context.Context, id string, index uint64) (*api.Allocation, error) {
	u := &url.URL{Path: "/v1/allocation/" + id, RawQuery: fmt.Sprintf("index=%d&wait=%s", index, changeWait)}
	resp, err := m.Ask(ctx, id, &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	var alloc api.Allocation
	return &alloc, json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&alloc)
}

// awaitChange returns when something in the allocation's directory has changed, such as its socket.
func (m *Machine) awaitChange(ctx context.Context, id string) {
	dir, err := os.Open(m.cfg.Dir.Alloc(id))
	if err != nil {
		_ = wake.Sleep(ctx, time.Second) // it is being removed
		return
	}
	defer dir.Close()
	watch, err := m.dirs.Dir(dir)
	if err != nil {
		_ = wake.Sleep(ctx, pollInterval)
		return
	}
	defer watch.Close()
	if m.locate(ctx, id).Holder != client.Nobody { // it has come before the watch
		return
	}
	select {
	case <-ctx.Done():
	case <-watch.Changed():
	}
}

// newTransport returns a transport that connects to the operators' sockets. A URL's host is the allocation's ID.
func newTransport(dir datadir.Dir) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTime)
			defer cancel()
			id, _, err := net.SplitHostPort(addr)
			if err != nil || !datadir.IsID(id) {
				return nil, fmt.Errorf("%q is no allocation", addr)
			}
			conn, err := socket.Dial(ctx, dir.OperatorSocket(id))
			if err != nil {
				return nil, err
			}
			peer, err := socket.ListenerOf(conn)
			if err == nil && peer.UID != 0 && int(peer.UID) != os.Geteuid() {
				err = fmt.Errorf("user %d listens on the operator's socket of allocation %s", peer.UID, id)
			}
			if err != nil {
				conn.Close()
				return nil, err
			}
			return conn, nil
		},
		DisableCompression: true, MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second,
	}
}

// listens reports whether a process listens on an allocation's socket.
func (m *Machine) listens(id string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	conn, err := socket.Dial(ctx, m.cfg.Dir.OperatorSocket(id))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// Ask sends a request to the process that runs an allocation, with the token of that allocation's operator.
func (m *Machine) Ask(ctx context.Context, id string, r *http.Request) (*http.Response, error) {
	token, err := workload.ReadOperatorToken(m.cfg.Dir.OperatorToken(id))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrNoAnswer, err)
	}
	u := *r.URL
	u.Scheme, u.Host = "http", id
	r.URL, r.Host = &u, "taskapi"
	r.Header.Set("X-Nomad-Token", token)
	resp, err := m.http.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrNoAnswer, err)
	}
	return resp, nil
}
