package fingerprint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"

	"taskapi/identity/privatefile"
)

// The bounds of a machine's metadata.
const (
	MaxKeys       = 256
	MaxKeyLength  = 128
	MaxValueBytes = 4 << 10
	MaxBytes      = 64 << 10 // of all keys and values together

	maxFile = 8 * MaxBytes // JSON writes a byte in six at most
)

// ErrMetadata is in every error about metadata that can't be kept: what is wrong with a key or a value, or that there are too many.
var ErrMetadata = errors.New("metadata can't be kept")

// Metadata is the machine's metadata that operators set over the API, in one file, which all agents of a data directory share. It is read at each
// use, and outlives the agents.
type Metadata struct {
	Path string // its directory is private
}

// Read returns the metadata, never nil.
func (m Metadata) Read() (map[string]string, error) {
	data, _, err := privatefile.Read(m.Path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the metadata: %w", err)
	}
	values := map[string]string{}
	if err := json.Unmarshal(data, &values); err != nil || values == nil {
		return nil, fmt.Errorf("read the metadata: %s holds no JSON object of strings; remove it, and set the metadata again", m.Path)
	}
	return values, nil
}

// Apply sets values, or removes them where nil is given, and returns all that there are then. Errors: ErrMetadata, and nothing has changed then.
func (m Metadata) Apply(changes map[string]*string) (map[string]string, error) {
	if err := checkChanges(changes); err != nil {
		return nil, err
	}
	lock, err := privatefile.Acquire(m.Path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("lock the metadata: %w", err)
	}
	defer func() { _ = lock.Release() }() // it is released when the file is closed, whatever the error
	values, err := m.Read()
	if err != nil {
		return nil, err
	}
	before := maps.Clone(values)
	for key, value := range changes {
		if value == nil {
			delete(values, key)
		} else {
			values[key] = *value
		}
	}
	if maps.Equal(before, values) {
		return values, nil
	}
	if err := checkSize(values); err != nil {
		return nil, err
	}
	data, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("encode the metadata: %w", err)
	}
	if err := privatefile.Write(m.Path, data); err != nil {
		return nil, fmt.Errorf("save the metadata: %w", err)
	}
	return values, nil
}

func checkChanges(changes map[string]*string) error {
	if len(changes) == 0 {
		return fmt.Errorf("%w: missing required Meta object", ErrMetadata)
	}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		switch value := changes[key]; {
		case key == "":
			return fmt.Errorf("%w: metadata keys must not be empty", ErrMetadata)
		case len(key) > MaxKeyLength:
			return fmt.Errorf("%w: the key %.32q... has %d bytes; at most %d are kept", ErrMetadata, key, len(key), MaxKeyLength)
		case !dotted(key):
			return fmt.Errorf("%w: %q is invalid; metadata keys must be valid dotted hcl identifiers", ErrMetadata, key)
		case value != nil && len(*value) > MaxValueBytes:
			return fmt.Errorf("%w: the value of %q has %d bytes; at most %d are kept", ErrMetadata, key, len(*value), MaxValueBytes)
		}
	}
	return nil
}

func dotted(key string) bool {
	for part := range strings.SplitSeq(key, ".") {
		if !hclsyntax.ValidIdentifier(part) {
			return false
		}
	}
	return true
}

func checkSize(values map[string]string) error {
	total := 0
	for key, value := range values {
		total += len(key) + len(value)
	}
	switch {
	case len(values) > MaxKeys:
		return fmt.Errorf("%w: that would be %d keys; at most %d are kept", ErrMetadata, len(values), MaxKeys)
	case total > MaxBytes:
		return fmt.Errorf("%w: that would be %d bytes; at most %d are kept", ErrMetadata, total, MaxBytes)
	}
	return nil
}
