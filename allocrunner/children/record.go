package children

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"taskapi/internal/privatefile"
)

// recordName is the file in the allocation's directory that keeps the record.
const recordName = "launches.json"

// maxRecord is more than the jobs that are being started can take.
const maxRecord = 64 << 20

// record is what outlives this process.
type record struct {
	// Since is the latest time of the schedule whose child was started or left out, at first when the job began.
	Since time.Time `json:"since,omitzero"`
	// Starting are the children that are being started, each a job by the ID of its allocation.
	Starting map[string]json.RawMessage `json:"starting,omitempty"`
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
