package children

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/privatefile"
)

// recordName is the file in the allocation's directory that keeps the record.
const recordName = "launches.json"

// maxRecord is more than the jobs that are being started can take.
const maxRecord = 64 << 20

// record is the state that outlives this process.
type record struct {
	// Since is the latest time of the schedule whose child was started or left out. At first it is the time at which the
	// job began.
	Since time.Time `json:"since,omitzero"`
	// Starting are the children that are being started, each a job by the ID of its allocation.
	Starting map[string]json.RawMessage `json:"starting,omitempty"`
	// Events are the latest ones, the oldest first.
	Events []Event `json:"events,omitempty"`
}

// mostEvents is how many events are kept.
const mostEvents = 50

// Event says that a child was launched, or why none was.
type Event struct {
	Number  uint64            `json:"number"` // grows by one from event to event, from 1 on
	Time    time.Time         `json:"time"`
	Type    string            `json:"type"`
	Message string            `json:"message"`
	Details map[string]string `json:"details,omitempty"`
}

// Events returns the latest events of the allocation in a directory, the oldest first.
func Events(dir string) ([]Event, error) {
	r, err := readRecord(dir)
	return r.Events, err
}

// Starting reports whether the allocation in a directory would start the child with an allocation's ID when it is
// resumed, unless the child has begun.
func Starting(dir, id string) bool {
	r, _ := readRecord(dir) // with a record that can't be read, the allocation is not resumed
	_, starting := r.Starting[id]
	return starting
}

// TaskEvents returns Events in the form of a task's, for those who show them as such; none when they can't be read.
func TaskEvents(dir string) (shown []*api.TaskEvent) {
	events, _ := Events(dir)
	for _, e := range events {
		shown = append(shown, &api.TaskEvent{Type: e.Type, Time: e.Time.UnixNano(), DisplayMessage: e.Message,
			Details: e.Details})
	}
	return shown
}

// add adds an event; pairs are keys and values of its details.
func (r *record) add(kind, message string, pairs ...string) {
	e := Event{Number: 1, Time: time.Now(), Type: kind, Message: message, Details: map[string]string{}}
	if n := len(r.Events); n > 0 {
		e.Number += r.Events[n-1].Number
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		e.Details[pairs[i]] = pairs[i+1]
	}
	r.Events = append(r.Events[max(0, len(r.Events)+1-mostEvents):], e)
}

func readRecord(dir string) (r record, err error) {
	encoded, _, err := privatefile.Read(filepath.Join(dir, recordName), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err == nil {
		err = json.Unmarshal(encoded, &r)
	}
	if err != nil {
		return record{}, fmt.Errorf("%s, which has the latest launch, can't be read: %w", recordName, err)
	}
	return r, nil
}

func (r record) save(dir string) error {
	encoded, err := json.Marshal(r)
	if err == nil {
		err = privatefile.Write(filepath.Join(dir, recordName), append(encoded, '\n'))
	}
	if err != nil {
		return fmt.Errorf("save the latest launch: %w", err)
	}
	return nil
}
