package state

import "taskapi/internal/logfile"

// HeaderSize is where the first batch begins.
const HeaderSize = logfile.HeaderSize

// Header returns the header of a file that is acknowledged up to a place.
func Header(acknowledged int64) []byte { return header(acknowledged, "1.2.3") }

// Found is a record in a file.
type Found struct {
	At, Size int
	Key      string
	TxID     uint64
}

// Records returns all records of a file, earlier versions among them.
func Records(data []byte) []Found {
	var all []Found
	for at := range data {
		if f, size, err := logfile.Parse(data[at:]); err == nil && f.Key != "" {
			all = append(all, Found{at, int(size), f.Key, f.TxID})
		}
	}
	return all
}
