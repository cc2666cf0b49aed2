// Package readiness reads the keys of a task's meta block by which a task says when it is ready, shows that it is
// alive, and gets the listening sockets of its ports. They are keys of meta, so that Nomad takes the same job file; to
// a task under Nomad they are variables of its environment and nothing more.
package readiness

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// The keys, all of a task's own meta block.
const (
	NotifyKey       = "taskapi_notify"
	WatchdogKey     = "taskapi_watchdog"
	ReadyTimeoutKey = "taskapi_ready_timeout"
	ListenKey       = "taskapi_listen"
)

// Prefix is that of all keys. A key with it that is none of Keys has no meaning.
const Prefix = "taskapi_"

// Keys are all keys.
var Keys = []string{NotifyKey, WatchdogKey, ReadyTimeoutKey, ListenKey}

// defaultReadyTimeout is systemd's, for services that notify.
const defaultReadyTimeout = 90 * time.Second

// leastWatchdog leaves a task on a busy machine the time to be scheduled at all.
const leastWatchdog = 100 * time.Millisecond

// maxListen is how many sockets a task may get.
const maxListen = 64

// Settings are what a task asks for.
type Settings struct {
	Notify       bool          // the task says when it is ready
	ReadyTimeout time.Duration // how long that may take; 0 for any time
	Watchdog     time.Duration // how long a task that is ready may be silent; 0 for any time
	Listen       []Port
}

// Port is a port whose listening socket the task gets.
type Port struct {
	Label string
	UDP   bool
}

func (p Port) String() string {
	if p.UDP {
		return p.Label + "/udp"
	}
	return p.Label
}

// Of returns a task's settings. Errors: a value that can't be read, with its key and what would be right.
func Of(task *api.Task) (Settings, error) {
	var s Settings
	var errs []error
	fail := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s is %q; %s", key, task.Meta[key], fmt.Sprintf(format, args...)))
	}
	if text, ok := task.Meta[NotifyKey]; ok {
		var err error
		if s.Notify, err = strconv.ParseBool(text); err != nil {
			fail(NotifyKey, `it must be "true" or "false"`)
		}
	}
	if text, ok := task.Meta[WatchdogKey]; ok {
		d, err := time.ParseDuration(text)
		if err != nil || d < leastWatchdog {
			fail(WatchdogKey, `it must be a time of at least %v, such as "10s"`, leastWatchdog)
		}
		s.Watchdog = d
	}
	s.ReadyTimeout = defaultReadyTimeout
	if text, ok := task.Meta[ReadyTimeoutKey]; ok {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			fail(ReadyTimeoutKey, `it must be a time such as "30s", or "0s" for no end`)
		}
		s.ReadyTimeout = d
	}
	for _, key := range []string{WatchdogKey, ReadyTimeoutKey} {
		if _, ok := task.Meta[key]; ok && !s.Notify && len(errs) == 0 {
			fail(key, `it needs %s = "true" beside it`, NotifyKey)
		}
	}
	if text, ok := task.Meta[ListenKey]; ok {
		var err error
		if s.Listen, err = ports(text); err != nil {
			fail(ListenKey, `it must list labels of the group's ports, such as "http" or "http, dns/udp": %v`, err)
		}
	}
	return s, errors.Join(errs...)
}

// ports reads a list of labels.
func ports(text string) ([]Port, error) {
	var list []Port
	for item := range strings.SplitSeq(text, ",") {
		label, protocol, given := strings.Cut(strings.TrimSpace(item), "/")
		p := Port{Label: label, UDP: protocol == "udp"}
		switch {
		case label == "":
			return nil, errors.New("a label is empty")
		case given && protocol != "udp" && protocol != "tcp":
			return nil, fmt.Errorf("%q is neither tcp nor udp", protocol)
		case slices.Contains(list, p):
			return nil, fmt.Errorf("%s is there twice", p)
		case len(list) == maxListen:
			return nil, fmt.Errorf("there are more than %d", maxListen)
		}
		list = append(list, p)
	}
	return list, nil
}

// Unknown returns the keys of a meta block that begin like those of this package and have no meaning.
func Unknown(meta map[string]string) []string {
	var keys []string
	for key := range meta {
		if strings.HasPrefix(key, Prefix) && !slices.Contains(Keys, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// The types of a task's events that are about its notifications, and a detail of the event of the start of a process
// that is going to say when it is ready.
const (
	EventReady     = "Ready"
	EventStatus    = "Status"
	DetailNotifies = "notifies"
)

// Shown returns what a task's events say about its latest process: whether it is ready, and its latest status text. A
// process that does not notify is always ready.
func Shown(state *api.TaskState) (ready bool, status string) {
	if state == nil || state.State != "running" {
		return true, ""
	}
	for _, e := range slices.Backward(state.Events) {
		switch {
		case e.Type == EventReady:
			ready = true
		case e.Type == EventStatus && status == "":
			status = e.DisplayMessage
		case e.Type == api.TaskStarted:
			return ready || e.Details[DetailNotifies] == "", status
		}
	}
	return true, status // it has had so many events that the one of its start is gone
}
