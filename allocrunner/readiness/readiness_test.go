package readiness_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/readiness"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		meta map[string]string
		want readiness.Settings
		err  string
	}{
		{nil, readiness.Settings{ReadyTimeout: 90 * time.Second}, ""},
		{map[string]string{"taskapi_notify": "true", "taskapi_watchdog": "10s", "taskapi_ready_timeout": "0s"},
			readiness.Settings{Notify: true, Watchdog: 10 * time.Second}, ""},
		{map[string]string{"taskapi_notify": "yes"}, readiness.Settings{}, `taskapi_notify is "yes"; it must be "true"`},
		{map[string]string{"taskapi_notify": "true", "taskapi_watchdog": "10"}, readiness.Settings{},
			`taskapi_watchdog is "10"; it must be a time of at least 100ms`},
		{map[string]string{"taskapi_notify": "true", "taskapi_watchdog": "0s"}, readiness.Settings{}, "at least 100ms"},
		{map[string]string{"taskapi_notify": "true", "taskapi_ready_timeout": "-1s"}, readiness.Settings{}, `such as "30s"`},
		{map[string]string{"taskapi_listen": "http, dns/udp,dns/tcp"}, readiness.Settings{ReadyTimeout: 90 * time.Second,
			Listen: []readiness.Port{{Label: "http"}, {Label: "dns", UDP: true}, {Label: "dns"}}}, ""},
		{map[string]string{"taskapi_listen": ""}, readiness.Settings{}, "a label is empty"},
		{map[string]string{"taskapi_listen": "a,,b"}, readiness.Settings{}, "a label is empty"},
		{map[string]string{"taskapi_listen": "a/sctp"}, readiness.Settings{}, `"sctp" is neither tcp nor udp`},
		{map[string]string{"taskapi_listen": "a, a/tcp"}, readiness.Settings{}, "a is there twice"},
		{map[string]string{"taskapi_watchdog": "10s"}, readiness.Settings{}, `it needs taskapi_notify = "true"`},
	} {
		got, err := readiness.Of(&api.Task{Meta: c.meta})
		switch {
		case c.err == "" && (err != nil || cmp.Diff(c.want, got) != ""):
			t.Errorf("%v: %v, %s", c.meta, err, cmp.Diff(c.want, got))
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%v: got %v, want %q", c.meta, err, c.err)
		}
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	state := func(types ...string) *api.TaskState {
		s := &api.TaskState{State: "running"}
		for _, e := range types {
			kind, text, _ := strings.Cut(e, ":")
			event := &api.TaskEvent{Type: kind, DisplayMessage: text}
			if kind == "Started" {
				event.Details = map[string]string{"notifies": text}
			}
			s.Events = append(s.Events, event)
		}
		return s
	}
	for _, c := range []struct {
		state  *api.TaskState
		ready  bool
		status string
	}{
		{nil, true, ""},
		{state("Started"), true, ""},
		{state("Started:true"), false, ""},
		{state("Started:true", "Status:loading"), false, "loading"},
		{state("Started:true", "Status:a", "Ready", "Status:b"), true, "b"},
		{state("Started:true", "Ready", "Status:a", "Terminated", "Started:true"), false, ""},
		{state("Signaling", "Signaling"), true, ""},
	} {
		if ready, status := readiness.Shown(c.state); ready != c.ready || status != c.status {
			t.Errorf("%+v: got %v, %q", c.state, ready, status)
		}
	}
}
