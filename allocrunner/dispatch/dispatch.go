// Package dispatch makes the children of parameterized and periodic jobs, with Nomad's names and by Nomad's rules, and
// gives a task the payload of its job. It starts nothing.
package dispatch

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang/snappy"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// What a parameterized job may say about its payload. Empty is Optional.
const (
	Optional  = "optional"
	Required  = "required"
	Forbidden = "forbidden"
)

// MaxPayload is the most bytes that a payload may have, as in Nomad.
const MaxPayload = 16 << 10

// Error says why a parameterized job does not take a dispatch.
type Error struct {
	JobID        string
	NeedsPayload bool
	NeedsMeta    []string // the missing keys
	Wrong        []string // what the dispatch has and must not have, a sentence each
}

func (e *Error) Error() string {
	all := slices.Clone(e.Wrong)
	if e.NeedsPayload {
		all = append(all, "it needs a payload")
	}
	if len(e.NeedsMeta) > 0 {
		all = append(all, "it needs the meta "+quoted(e.NeedsMeta))
	}
	return fmt.Sprintf("job %q: %s", e.JobID, strings.Join(all, "; "))
}

func quoted(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = strconv.Quote(name)
	}
	return strings.Join(all, ", ")
}

// Check returns an *Error if the parameterized job does not take the dispatch.
func Check(parent *api.Job, d interfaces.Dispatch) error {
	takes, e := parent.ParameterizedJob, &Error{JobID: *parent.ID}
	switch size := len(d.Payload); {
	case size == 0:
		e.NeedsPayload = takes.Payload == Required
	case takes.Payload == Forbidden:
		e.Wrong = append(e.Wrong, "it forbids a payload")
	case size > MaxPayload:
		e.Wrong = append(e.Wrong, fmt.Sprintf("the payload has more than %d bytes", MaxPayload))
	}
	known := slices.Concat(takes.MetaRequired, takes.MetaOptional)
	unknown := slices.DeleteFunc(slices.Sorted(maps.Keys(d.Meta)), func(key string) bool {
		return slices.Contains(known, key)
	})
	if len(unknown) > 0 {
		takes := "none"
		if len(known) > 0 {
			takes = quoted(known)
		}
		e.Wrong = append(e.Wrong, fmt.Sprintf("it does not take the meta %s: it takes %s", quoted(unknown), takes))
	}
	for _, key := range takes.MetaRequired {
		if _, ok := d.Meta[key]; !ok {
			e.NeedsMeta = append(e.NeedsMeta, key)
		}
	}
	if d.Priority < 0 || d.Priority > maxPriority {
		e.Wrong = append(e.Wrong, fmt.Sprintf("the priority %d is not from 1 to %d", d.Priority, maxPriority))
	}
	if e.NeedsPayload || len(e.NeedsMeta) > 0 || len(e.Wrong) > 0 {
		return e
	}
	return nil
}

// maxPriority is the highest priority of a job that a Nomad server takes by default.
const maxPriority = 100

// Dispatched returns the child of a parameterized job for a dispatch that Check accepts.
func Dispatched(parent *api.Job, d interfaces.Dispatch, now time.Time) *api.Job {
	random := make([]byte, 4)
	_, _ = rand.Read(random) // it never fails
	prefix := ""
	if d.IDPrefix != "" {
		prefix = d.IDPrefix + "-"
	}
	child := childOf(parent, fmt.Sprintf("/dispatch-%s%d-%s", prefix, now.Unix(), hex.EncodeToString(random)))
	child.Dispatched = true
	child.DispatchIdempotencyToken = &d.Token
	child.Meta = maps.Clone(parent.Meta)
	if child.Meta == nil {
		child.Meta = map[string]string{}
	}
	maps.Copy(child.Meta, d.Meta)
	if len(d.Payload) > 0 {
		child.Payload = snappy.Encode(nil, d.Payload) // as in Nomad
	}
	if d.Priority > 0 {
		child.Priority = &d.Priority
	}
	return child
}

// Launched returns the child of a periodic job for one of its times.
func Launched(parent *api.Job, at time.Time) *api.Job {
	child := childOf(parent, fmt.Sprintf("/periodic-%d", at.Unix()))
	child.Periodic = nil
	return child
}

// Sample returns an allocation of a job that starts children as one of a child, with a value for each key of the meta
// that a dispatch may give: to review what its tasks need.
func Sample(alloc *api.Allocation) *api.Allocation {
	child := *alloc
	child.Job = childOf(alloc.Job, "/sample")
	child.Job.Periodic, child.Job.ParameterizedJob = nil, nil
	child.Job.Meta = maps.Clone(alloc.Job.Meta)
	if p := alloc.Job.ParameterizedJob; p != nil {
		for _, key := range slices.Concat(p.MetaRequired, p.MetaOptional) {
			if _, ok := child.Job.Meta[key]; !ok {
				if child.Job.Meta == nil {
					child.Job.Meta = map[string]string{}
				}
				child.Job.Meta[key] = "value"
			}
		}
	}
	return &child
}

func childOf(parent *api.Job, suffix string) *api.Job {
	child, id := *parent, *parent.ID+suffix
	child.ID, child.Name, child.ParentID = &id, &id, parent.ID
	child.Status, child.StatusDescription, child.Stable, child.Version, child.SubmitTime = nil, nil, nil, nil, nil
	child.CreateIndex, child.ModifyIndex, child.JobModifyIndex = nil, nil, nil
	return &child
}

// Payload returns the payload of a job as it was dispatched. Errors: it is damaged, or too long.
func Payload(job *api.Job) ([]byte, error) {
	if len(job.Payload) == 0 {
		return nil, nil
	}
	var payload []byte
	size, err := snappy.DecodedLen(job.Payload)
	if err == nil && size > MaxPayload {
		err = fmt.Errorf("it has %d bytes, and at most %d are allowed", size, MaxPayload)
	}
	if err == nil {
		payload, err = snappy.Decode(nil, job.Payload)
	}
	if err != nil {
		return nil, fmt.Errorf("payload of job %q: %w", *job.ID, err)
	}
	return payload, nil
}
