package handlers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/internal/must"
)

// plain seals nothing.
type plain struct{}

func (plain) Seal(items []byte, _ string) ([]byte, error)  { return items, nil }
func (plain) Open(sealed []byte, _ string) ([]byte, error) { return sealed, nil }

func newVariables(t *testing.T) *variables.Service {
	t.Helper()
	store := memory.New()
	t.Cleanup(func() { must.OK(t, store.Close()) })
	return variables.New(variables.Config{Store: store, Sealer: plain{}})
}

// ruledToken is that of a task which has a policy's rules about variables, beside what Nomad's implicit policy gives.
const ruledToken = "ruled"

type ruledAuthenticator struct{ streamAuthenticator }

func (a *ruledAuthenticator) Authenticate(
	r *http.Request, owner auth.Owner, peer auth.Peer,
) (*auth.Principal, *auth.Denial) {
	if r.Header.Get("X-Nomad-Token") != ruledToken {
		return a.streamAuthenticator.Authenticate(r, owner, peer)
	}
	policy, err := auth.ParsePolicy("p.hcl", []byte("preset = \"nomad\"\nnamespace \"default\" {\nvariables {\n"+
		"path \"shown/*\" { capabilities = [\"list\"] }\npath \"kept/*\" { capabilities = [\"write\"] }\n}\n}"))
	if err != nil {
		panic(err)
	}
	p := policy.Principal("default", "demo", "web", "server")
	p.Claims.AllocationID, p.Claims.ExpiresAt = owner.AllocationID, lasting
	return p, nil
}

// variableLines describes the events of variables in lines of a stream, until one of the path "end".
func variableLines(t *testing.T, lines *bufio.Scanner) (all []string) {
	t.Helper()
	for lines.Scan() {
		var line struct {
			Index  uint64
			Events []struct {
				Topic, Type, Key, Namespace string
				FilterKeys                  []string
				Index                       uint64
				Payload                     struct {
					Deleted  *bool
					Metadata api.VariableMetadata
					Items    any
				}
			}
		}
		must.OK(t, json.Unmarshal(lines.Bytes(), &line))
		for _, e := range line.Events {
			m := e.Payload.Metadata
			if e.Topic != "Variable" || e.Type != "VariableUpdated" || e.Key != m.Path || e.Namespace != m.Namespace ||
				e.FilterKeys != nil || e.Payload.Deleted == nil || e.Index != line.Index || m.ModifyIndex == 0 ||
				strings.Contains(lines.Text(), "hunter2") {
				t.Errorf("the line is %s", lines.Text())
			}
			text := m.Namespace + ":" + m.Path
			if m.Lock != nil {
				text += " locked by " + m.Lock.ID
			}
			if e.Payload.Deleted != nil && *e.Payload.Deleted {
				text += " deleted"
			}
			if all = append(all, text); m.Path == "nomad/jobs" {
				return all
			}
		}
	}
	t.Fatal("the stream has ended")
	return nil
}

// TestVariableEvents: a stream has the changes of those variables that its caller may list, from its first line on, and
// shows their metadata, without items, and a lock to the operator alone.
func TestVariableEvents(t *testing.T) {
	const demo, end = "default:nomad/jobs/demo", "default:nomad/jobs"
	put := func(kept *variables.Service, place string) error {
		namespace, path, _ := strings.Cut(place, ":")
		v := &api.Variable{Namespace: namespace, Path: path, Items: api.VariableItems{"password": "hunter2"}}
		_, _, err := kept.Put(t.Context(), v, nil)
		return err
	}
	write := func(t *testing.T, kept *variables.Service) {
		t.Helper()
		change := func(make func() error) { // each is seen before the next one
			_, _, more := kept.Feed().Since(0)
			must.OK(t, make())
			<-more
		}
		for _, place := range []string{"default:shown/a", "default:kept/a", demo, "prod:nomad/jobs/demo"} {
			change(func() error { return put(kept, place) })
		}
		change(func() error {
			lock := &api.VariableLock{ID: "mine", TTL: "1h", LockDelay: "1s"}
			_, _, err := kept.Acquire(t.Context(), &api.Variable{Namespace: "default", Path: "nomad/jobs/demo", Lock: lock})
			return err
		})
		change(func() error {
			_, _, err := kept.Release(t.Context(), "default", "nomad/jobs/demo", "mine")
			return err
		})
		change(func() error {
			_, err := kept.Delete(t.Context(), "default", "nomad/jobs/demo", nil)
			return err
		})
		change(func() error { return put(kept, end) })
	}
	own := []string{demo, demo, demo, demo + " deleted", end}
	ruled := append([]string{"default:shown/a"}, own...)
	locked := []string{"default:shown/a", "default:kept/a", demo, demo + " locked by mine", demo, demo + " deleted", end}
	for _, tc := range []struct {
		token, query string
		want         []string
	}{
		{goodToken, "?topic=Variable", own},
		{goodToken, "?topic=Variable&namespace=*", own},
		{goodToken, "", own},
		{goodToken, "?topic=*&index=3", own},
		{goodToken, "?topic=Variable:nomad/jobs", []string{end}},
		{goodToken, "?topic=Job&topic=*:nomad/jobs", []string{end}},
		{ruledToken, "?topic=Variable", ruled},
		{ruledToken, "?topic=Allocation:x&topic=Variable:*", nil},
		{ruledToken, "", ruled},
		{operator, "?topic=Variable", locked},
		{operator, "?topic=Variable&namespace=*", slices.Insert(slices.Clone(locked), 3, "prod:nomad/jobs/demo")},
	} {
		t.Run(tc.token+tc.query, func(t *testing.T) {
			kept, owner := newVariables(t), taskSocket
			if tc.token == operator {
				owner = auth.Owner{AllocationID: allocID, UID: peer.UID}
			}
			s := newServerOf(t, owner, newAlloc(t), withVariables(kept), func(c *handlers.Config) {
				c.Authenticator, c.Events = &ruledAuthenticator{streamAuthenticator{expires: lasting}}, events.New()
			})
			if tc.want == nil {
				if got := s.do(t, "GET", streamPath+tc.query, tc.token, ""); got.Status != 403 {
					t.Errorf("answered %d, want 403", got.Status)
				}
				return
			}
			must.OK(t, put(kept, "default:shown/before"))
			c := s.dial(t)
			must.Get(io.WriteString(c.Conn, head("GET", streamPath+tc.query, tc.token, "")))(t)
			response := must.Get(http.ReadResponse(c.Reader, nil))(t)
			lines := bufio.NewScanner(response.Body)
			if !lines.Scan() || lines.Text() != "{}" {
				t.Fatalf("%d, and then %q; want {}", response.StatusCode, lines.Text())
			}
			write(t, kept)
			if got := variableLines(t, lines); !slices.Equal(got, tc.want) {
				t.Errorf("streamed %q, want %q", got, tc.want)
			}
		})
	}
}

// TestVariableEventsAreRefused: the topic takes the right to search variables, and a stream of all topics takes the
// right to one of them.
func TestVariableEventsAreRefused(t *testing.T) {
	log := streaming(events.New())
	s := newServer(t, newAlloc(t), withVariables(newVariables(t)), log)
	for _, query := range []string{"?topic=Variable", "?topic=Variable:nomad/jobs/demo", "?topic=Job&topic=Variable"} {
		for _, token := range []string{nomadToken, readToken, nodeToken, poorToken, execToken} {
			if got := s.do(t, "GET", streamPath+query, token, ""); got.Status != 403 {
				t.Errorf("%s of %s = %d, want 403", query, token, got.Status)
			}
		}
	}
	for _, token := range []string{nomadToken, poorToken} {
		for _, query := range []string{"", "?topic=*"} {
			if got := s.do(t, "GET", streamPath+query, token, ""); got.Status != 403 {
				t.Errorf("%q of %s = %d, want 403", query, token, got.Status)
			}
		}
	}
	none := newServer(t, newAlloc(t), log)
	if got := none.do(t, "GET", streamPath+"?topic=Variable", goodToken, ""); got.Status != 501 {
		t.Errorf("without variables = %d, want 501", got.Status)
	}
}

// TestSlowReaderOfVariables: for a reader who does not read, a bounded number of changes is kept, and the reader learns
// that changes are lost.
func TestSlowReaderOfVariables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := newVariables(t)
		dial, stop := bubbled(t, newAlloc(t), streaming(events.New()), withVariables(kept))
		defer stop()
		c := dial()
		defer c.Close()
		go func() { _, _ = io.WriteString(c, head("GET", streamPath+"?topic=Variable", goodToken, "")) }()
		response := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
		for i := range 600 {
			v := &api.Variable{Namespace: "default", Path: "nomad/jobs/demo", Items: api.VariableItems{"i": fmt.Sprint(i)}}
			_, _, err := kept.Put(t.Context(), v, nil)
			must.OK(t, err)
			synctest.Wait()
		}
		time.Sleep(20 * time.Second)
		text, err := io.ReadAll(response.Body)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if err != nil || len(lines) > 300 || lines[len(lines)-1] != slowConsumerEnd {
			t.Errorf("%d lines, %v; want a word on what was lost last, not %.200q", len(lines), err, lines[len(lines)-1])
		}
	})
}

// askedMachine has one allocation, whose process does not answer.
type askedMachine struct {
	*busyMachine
	asked chan string // queries of streams
}

func (m *askedMachine) Ask(_ context.Context, _ string, r *http.Request) (*http.Response, error) {
	m.asked <- r.URL.RawQuery
	return nil, errors.New("no answer")
}

// TestMachinesVariableEvents: the machine's stream has each change of a variable once, whatever runs. The allocations
// are asked for all other topics that the client wants, and for none if it wants no other.
func TestMachinesVariableEvents(t *testing.T) {
	const others = "topic=Job%s&topic=Evaluation%[1]s&topic=Deployment%[1]s&topic=Allocation%[1]s&topic=Service%[1]s" +
		"&topic=Node%[1]s"
	for query, want := range map[string]string{
		"":                                  fmt.Sprintf(others, ""),
		"?topic=*:nomad/jobs&namespace=*":   "namespace=%2A&" + fmt.Sprintf(others, "%3Anomad%2Fjobs"),
		"?topic=Variable":                   "",
		"?topic=Job&topic=Variable&index=9": "topic=Job",
	} {
		t.Run(query, func(t *testing.T) {
			m := &askedMachine{&busyMachine{self: newAlloc(t)}, make(chan string, 10)}
			kept := newVariables(t)
			conn := dialMachine(t, m, withVariables(kept))
			must.Get(io.WriteString(conn, head("GET", streamPath+query, operator, "")))(t)
			response := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
			lines := bufio.NewScanner(response.Body)
			if !lines.Scan() || lines.Text() != "{}" {
				t.Fatalf("%d, and then %q; want {}", response.StatusCode, lines.Text())
			}
			v := &api.Variable{Namespace: "default", Path: "nomad/jobs", Items: api.VariableItems{"k": "hunter2"}}
			_, _, err := kept.Put(t.Context(), v, nil)
			must.OK(t, err)
			if got := variableLines(t, lines); len(got) != 1 {
				t.Errorf("streamed %q, want one event", got)
			}
			asked := ""
			if want != "" {
				asked = <-m.asked
			}
			if asked != want || len(m.asked) > 0 {
				t.Errorf("the allocation is asked for %q, want %q; and %d times more", asked, want, len(m.asked))
			}
		})
	}
}
