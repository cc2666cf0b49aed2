package look

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/hashicorp/nomad/api"
)

// maxHad is how many events are remembered at least: more than a stream begins with.
const maxHad = 8192

// eventsHad are the latest events of a stream that have come. Several have one index, and a stream that is opened again begins with those of
// the last one, in another process without some, and with others: neither index nor count says which have not come yet.
type eventsHad struct{ latest, earlier map[eventID]struct{} }

type eventID [sha256.Size]byte

// before reports whether the event has come before, and remembers it.
func (h *eventsHad) before(e *api.Event) bool {
	id := idOfEvent(e)
	_, latest := h.latest[id]
	_, earlier := h.earlier[id]
	if latest || earlier {
		return true
	}
	if h.latest == nil || len(h.latest) >= maxHad {
		h.latest, h.earlier = map[eventID]struct{}{}, h.latest
	}
	h.latest[id] = struct{}{}
	return false
}

// idOfEvent returns what no other event has. An allocation's version has one event, of which another process does not know the type.
func idOfEvent(e *api.Event) eventID {
	id := *e
	if id.Topic == api.TopicAllocation {
		id.Type, id.Payload = "", nil
	}
	text, _ := json.Marshal(id) // it comes from JSON
	return sha256.Sum256(text)
}
