package dispatch_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/dispatch"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func parent(payload string) *api.Job {
	return &api.Job{
		ID: new("p"), Name: new("p"), Priority: new(50), Version: new(uint64(3)),
		Meta: map[string]string{"a": "1", "fixed": "f"},
		ParameterizedJob: &api.ParameterizedJobConfig{
			Payload: payload, MetaRequired: []string{"a", "b"}, MetaOptional: []string{"c"},
		},
	}
}

// TestCheck holds Nomad's rules for a dispatch.
func TestCheck(t *testing.T) {
	both, x := map[string]string{"a": "", "b": ""}, []byte("x")
	for name, tc := range map[string]struct {
		payload string
		d       interfaces.Dispatch
		want    string // empty for no error
	}{
		"optional, without":  {dispatch.Optional, interfaces.Dispatch{Meta: both}, ""},
		"optional, with":     {"", interfaces.Dispatch{Meta: both, Payload: x}, ""},
		"required, with":     {dispatch.Required, interfaces.Dispatch{Meta: both, Payload: x}, ""},
		"required, without":  {dispatch.Required, interfaces.Dispatch{Meta: both}, `job "p": it needs a payload`},
		"forbidden, with":    {dispatch.Forbidden, interfaces.Dispatch{Meta: both, Payload: x}, "forbids a payload"},
		"forbidden, without": {dispatch.Forbidden, interfaces.Dispatch{Meta: both}, ""},
		"longest":            {"", interfaces.Dispatch{Meta: both, Payload: make([]byte, dispatch.MaxPayload)}, ""},
		"too long": {"", interfaces.Dispatch{Meta: both, Payload: make([]byte, dispatch.MaxPayload+1)},
			"more than 16384 bytes"},
		"nothing":    {"", interfaces.Dispatch{}, `it needs the meta "a", "b"`},
		"one of two": {"", interfaces.Dispatch{Meta: map[string]string{"a": ""}}, `it needs the meta "b"`},
		"unknown": {"", interfaces.Dispatch{Meta: map[string]string{"a": "", "b": "", "x": ""}},
			`the meta "x": it takes "a", "b", "c"`},
		"priority":            {"", interfaces.Dispatch{Meta: both, Priority: 100}, ""},
		"priority, too high":  {"", interfaces.Dispatch{Meta: both, Priority: 101}, "the priority 101"},
		"priority, too low":   {"", interfaces.Dispatch{Meta: both, Priority: -1}, "the priority -1"},
		"optional meta given": {"", interfaces.Dispatch{Meta: map[string]string{"a": "", "b": "", "c": ""}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := dispatch.Check(parent(tc.payload), tc.d)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if _, ok := errors.AsType[*dispatch.Error](err); err != nil && !ok {
				t.Errorf("%T is no *dispatch.Error", err)
			}
		})
	}
	none := parent("")
	none.ParameterizedJob = &api.ParameterizedJobConfig{}
	same.Says(t, nil, "it takes none", dispatch.Check(none, interfaces.Dispatch{Meta: both}), "a job that takes no meta")
}

// TestDispatched: a child has Nomad's ID, its parent's meta under its own, and the payload; its parent stays as it is.
func TestDispatched(t *testing.T) {
	of, now := parent(""), time.Unix(1_700_000_000, 0)
	child := dispatch.Dispatched(of, interfaces.Dispatch{
		Payload: []byte("hello"), Meta: map[string]string{"a": "2", "b": "3"}, Priority: 70, Token: "once", IDPrefix: "pre",
	}, now)
	if want := regexp.MustCompile(`^p/dispatch-pre-1700000000-[0-9a-f]{8}$`); !want.MatchString(*child.ID) ||
		*child.Name != *child.ID || *child.ParentID != "p" {
		t.Errorf("ID %q, name %q, parent %q", *child.ID, *child.Name, *child.ParentID)
	}
	if !child.Dispatched || child.IsParameterized() || interfaces.IsParent(child) || child.Version != nil ||
		*child.Priority != 70 || *child.DispatchIdempotencyToken != "once" {
		t.Errorf("%+v", child)
	}
	if m := child.Meta; len(m) != 3 || m["a"] != "2" || m["b"] != "3" || m["fixed"] != "f" {
		t.Errorf("meta %v", m)
	}
	same.As(t, "hello", string(must.Get(dispatch.Payload(child))(t)), "payload")
	if len(of.Meta) != 2 || of.Meta["a"] != "1" || *of.Priority != 50 || *of.ID != "p" {
		t.Errorf("the parent has changed: %+v", of)
	}
	if other := dispatch.Dispatched(of, interfaces.Dispatch{}, now); *other.ID == *child.ID || other.Payload != nil {
		t.Errorf("a second child %q, payload %v", *other.ID, other.Payload)
	}
}

// TestLaunched: a child of a periodic job is named by its time, and is not periodic.
func TestLaunched(t *testing.T) {
	of := &api.Job{ID: new("p"), Periodic: &api.PeriodicConfig{}}
	child := dispatch.Launched(of, time.Unix(1_700_000_000, 0))
	if *child.ID != "p/periodic-1700000000" || *child.ParentID != "p" ||
		interfaces.IsParent(child) || !interfaces.IsParent(of) {
		t.Errorf("%+v", child)
	}
}

// TestDamagedPayload: what is no payload is an error, whatever length it claims.
func TestDamagedPayload(t *testing.T) {
	for name, payload := range map[string][]byte{
		"no snappy": {0xff}, "a bomb": snappy.Encode(nil, make([]byte, dispatch.MaxPayload+1)), "cut": {5, 16},
	} {
		if got, err := dispatch.Payload(&api.Job{ID: new("p"), Payload: payload}); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}
