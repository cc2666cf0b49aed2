package templates

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Waiting is the type of the event of a task that waits for values.
const Waiting = "Template"

const (
	// eventPause is the time after which an event names missing values: Nomad's.
	eventPause = 3 * time.Second
	// mostMissing is how many of them an event names: Nomad's number.
	mostMissing = 3
	// mostCharacters is how much of each name an event has.
	mostCharacters = 200
)

// missingEvents emits an event when values have been missing for a while, and again when others are missing.
type missingEvents struct {
	emit    func(kind, message string)
	missing []string  // of the event that is due, or was emitted
	at      time.Time // when the event is due; zero for none
}

// update notes the queries that lack an answer now.
func (e *missingEvents) update(pending []*templateState) {
	var missing []string
	for _, t := range pending {
		for _, name := range t.missing {
			missing = append(missing, name[:min(len(name), mostCharacters)])
		}
	}
	slices.Sort(missing)
	missing = slices.Compact(missing)
	if slices.Equal(missing, e.missing) {
		return
	}
	e.missing = missing
	if e.at.IsZero() {
		e.at = time.Now().Add(eventPause)
	}
}

// due returns the channel that gets an element when an event is due.
func (e *missingEvents) due() <-chan time.Time {
	if e.at.IsZero() {
		return nil
	}
	return time.After(time.Until(e.at))
}

// fire emits the event if its time has come.
func (e *missingEvents) fire() {
	if e.at.IsZero() || time.Now().Before(e.at) {
		return
	}
	e.at = time.Time{}
	named := e.missing
	if more := len(named) - mostMissing; more > 0 {
		named = append(slices.Clone(named[:mostMissing]), fmt.Sprintf("and %d more", more))
	}
	e.emit(Waiting, "Missing: "+strings.ToValidUTF8(strings.Join(named, ", "), ""))
}
