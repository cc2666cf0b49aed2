package etcd

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
)

// A value in etcd is sealed for its key. The value of an entry then has two bytes for the format, the length of the
// lease owner's name, that name, and the entry's own value.
const formatEntry = "\x01\x00"

var errFormat = errors.New("the value has a format that this version does not know")

// seal seals a value for the place of a key below the prefix. No prefix and no key has a NUL.
func (c *core) seal(plain []byte, key string) ([]byte, error) {
	return c.sealer.Seal(plain, c.config.Prefix+"\x00"+key)
}

// open opens a value of a key below the prefix. Earlier versions have sealed values without the prefix.
func (c *core) open(sealed []byte, key string) ([]byte, error) {
	plain, err := c.sealer.Open(sealed, c.config.Prefix+"\x00"+key)
	if err != nil {
		if earlier, is := c.sealer.Open(sealed, key); is == nil {
			return earlier, nil
		}
	}
	return plain, err
}

func (c *core) sealEntry(key, owner string, value []byte) ([]byte, error) {
	plain := binary.AppendUvarint([]byte(formatEntry), uint64(len(owner)))
	plain = append(append(plain, owner...), value...)
	return c.seal(plain, entries+key)
}

func (c *core) openEntry(key string, sealed []byte) (owner string, value []byte, err error) {
	plain, err := c.open(sealed, entries+key)
	if err != nil {
		return "", nil, err
	}
	rest, ok := bytes.CutPrefix(plain, []byte(formatEntry))
	size, n := binary.Uvarint(rest)
	if !ok || n <= 0 || size > cluster.MaxKeyBytes || size > uint64(len(rest)-n) {
		return "", nil, errFormat
	}
	rest = rest[n:]
	return string(rest[:size]), rest[size:], nil
}

// entry returns the entry of a key.
func (c *core) entry(key string, kvs []client.KV) cluster.Entry {
	if len(kvs) == 0 {
		return cluster.Entry{Key: key}
	}
	kv := kvs[0]
	owner, value, err := c.openEntry(key, kv.Value)
	return cluster.Entry{Key: key, Value: value, Lease: owner, Damaged: err != nil,
		CreateIndex: min(kv.CreateRevision, kv.ModRevision), ModifyIndex: kv.ModRevision}
}

// ownerRecord is the value of an owner's key: the lease, and who holds the lease. The key is itself under the lease, so
// both end together.
type ownerRecord struct {
	Lease   int64    `json:"lease"`
	Holders []string `json:"holders"`

	create, modify uint64 // of the key
}

func (c *core) sealOwner(owner string, r ownerRecord) ([]byte, error) {
	plain, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return c.seal(plain, owners+owner)
}

func (c *core) openOwner(owner string, kv client.KV) (r ownerRecord, err error) {
	plain, err := c.open(kv.Value, owners+owner)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(plain, &r); err != nil || r.Lease == 0 {
		return r, fmt.Errorf("the record of the lease of %q is damaged: %w", owner, errFormat)
	}
	r.create, r.modify = kv.CreateRevision, kv.ModRevision
	return r, nil
}
