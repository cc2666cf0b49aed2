package variables

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// wireVariableBody is what a client sends of a variable. Its path is the URL's, and its indexes and times are the
// store's.
type wireVariableBody struct {
	Namespace string
	Items     map[string]string
	Lock      *struct {
		ID        string
		TTL       wireDuration
		LockDelay wireDuration
	}
}

// variable returns the variable that a client has sent.
func (b wireVariableBody) variable(namespace, path string) *api.Variable {
	v := &api.Variable{Namespace: namespace, Path: path, Items: b.Items}
	if b.Lock != nil && (b.Lock.ID != "" || b.Lock.TTL != "" || b.Lock.LockDelay != "") {
		v.Lock = &api.VariableLock{ID: b.Lock.ID, TTL: string(b.Lock.TTL), LockDelay: string(b.Lock.LockDelay)}
	}
	return v
}

// wireDuration is a duration as the SDK has it, a text such as "15s", empty for none or for zero. Nomad takes a number
// of nanoseconds, too.
type wireDuration string

// UnmarshalJSON reads a text or a number.
func (d *wireDuration) UnmarshalJSON(encoded []byte) error {
	var value any
	if err := json.Unmarshal(encoded, &value); err != nil {
		return err
	}
	var parsed time.Duration
	switch v := value.(type) {
	case nil:
	case float64:
		parsed = time.Duration(v)
	case string:
		if v == "" {
			break
		}
		var err error
		if parsed, err = time.ParseDuration(v); err != nil {
			return fmt.Errorf("a lock's TTL and LockDelay: %w", err)
		}
	default:
		return errors.New(`a lock's TTL and LockDelay must be durations such as "15s"`)
	}
	*d = ""
	if parsed != 0 {
		*d = wireDuration(parsed.String())
	}
	return nil
}
