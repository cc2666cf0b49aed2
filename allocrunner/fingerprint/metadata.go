package fingerprint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"

	"taskapi/allocrunner/cluster"
)

// The bounds of a machine's metadata.
const (
	MaxKeys       = 256
	MaxKeyLength  = 128
	MaxValueBytes = 4 << 10
	MaxBytes      = 64 << 10 // of all keys and values together
)

// ErrMetadata marks errors about invalid metadata: a key or a value is wrong, or there would be too many.
var ErrMetadata = errors.New("metadata can't be kept")

// Metadata is the machine's metadata that operators set over the API. It is one entry of the store, which all agents of
// a data directory share. It is read at each use, and outlives the agents.
type Metadata struct {
	Store cluster.Store
	Key   string // of the entry
}

// Read returns the metadata, never nil.
func (m Metadata) Read(ctx context.Context) (map[string]string, error) {
	values, _, err := m.read(ctx)
	return values, err
}

// read returns the metadata with the index of its entry.
func (m Metadata) read(ctx context.Context) (values map[string]string, index uint64, err error) {
	entry, _, err := m.Store.Get(ctx, m.Key)
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("read the metadata: %w", err)
	case entry.ModifyIndex == 0:
		return map[string]string{}, 0, nil
	}
	if err := json.Unmarshal(entry.Value, &values); err != nil || values == nil {
		return nil, 0, fmt.Errorf("read the metadata: the store's entry %s holds no JSON object of strings; remove it, and "+
			"set the metadata again", m.Key)
	}
	return values, entry.ModifyIndex, nil
}

// Apply sets values, or removes those that are nil, and returns all metadata. Errors: ErrMetadata, after which nothing
// has changed.
func (m Metadata) Apply(ctx context.Context, changes map[string]*string) (map[string]string, error) {
	if err := checkChanges(changes); err != nil {
		return nil, err
	}
	for {
		values, index, err := m.read(ctx)
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
		_, err = m.Store.Commit(ctx, cluster.Txn{
			If:   []cluster.Condition{{Key: m.Key, ModifyIndex: index}},
			Then: []cluster.Operation{{Key: m.Key, Value: data}},
		})
		if cluster.IsConflict(err) {
			continue // another agent was faster
		}
		if err != nil {
			return nil, fmt.Errorf("save the metadata: %w", err)
		}
		return values, nil
	}
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
			return fmt.Errorf("%w: the key %.32q... has %d bytes; at most %d are kept", ErrMetadata, key, len(key),
				MaxKeyLength)
		case !dotted(key):
			return fmt.Errorf("%w: %q is invalid; metadata keys must be valid dotted hcl identifiers", ErrMetadata, key)
		case value != nil && len(*value) > MaxValueBytes:
			return fmt.Errorf("%w: the value of %q has %d bytes; at most %d are kept", ErrMetadata, key, len(*value),
				MaxValueBytes)
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
