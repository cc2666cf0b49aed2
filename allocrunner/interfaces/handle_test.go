package interfaces_test

import (
	"encoding/json"
	"testing"

	"taskapi/allocrunner/interfaces"
)

// TestHandlesKeepTheirBytes in the saved state, whatever they are. A process of an earlier version of taskapi is an
// object there.
func TestHandlesKeepTheirBytes(t *testing.T) {
	for handle, want := range map[string]string{
		"": `null`, `{"PID":7,"StartedAt":"2026-01-02T03:04:05Z"}`: `{"PID":7,"StartedAt":"2026-01-02T03:04:05Z"}`,
		"container": `"Y29udGFpbmVy"`, `{"not" : "compact"}`: `"eyJub3QiIDogImNvbXBhY3QifQ=="`, "{": `"ew=="`,
		"\x00\xff": `"AP8="`, `"text"`: `"InRleHQi"`,
	} {
		text, err := json.Marshal(interfaces.SavedTask{Handle: interfaces.Handle(handle)[:len(handle):len(handle)]})
		var raw struct{ Handle json.RawMessage }
		var back interfaces.SavedTask
		if err == nil {
			err = json.Unmarshal(text, &raw)
		}
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || handle != "" && string(raw.Handle) != want || string(back.Handle) != handle {
			t.Errorf("%q became %s, and then %q, %v", handle, raw.Handle, back.Handle, err)
		}
	}
}
