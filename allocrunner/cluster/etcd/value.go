package etcd

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"taskapi/allocrunner/cluster"
)

// A value in etcd is sealed for its place: the kind of its key, and the name. Inside, a value of an entry has a byte
// for the format, the index with which the entry was made (0: etcd's create_revision, 1: the revision of this version),
// the length of the lease's owner, the owner, and the value.
const formatEntry = 1

// bornNow marks an entry that was deleted and written again by one commit.
const bornNow = 1

var errFormat = errors.New("the value has a format that this version does not know")

func (c *core) sealEntry(key, owner string, born uint64, value []byte) ([]byte, error) {
	plain := []byte{formatEntry}
	plain = binary.AppendUvarint(plain, born)
	plain = binary.AppendUvarint(plain, uint64(len(owner)))
	plain = append(append(plain, owner...), value...)
	return c.sealer.Seal(plain, entries+key)
}

func (c *core) openEntry(key string, sealed []byte) (owner string, born uint64, value []byte, err error) {
	plain, err := c.sealer.Open(sealed, entries+key)
	if err != nil {
		return "", 0, nil, err
	}
	if len(plain) == 0 || plain[0] != formatEntry {
		return "", 0, nil, errFormat
	}
	born, n := binary.Uvarint(plain[1:])
	if n <= 0 {
		return "", 0, nil, errFormat
	}
	plain = plain[1+n:]
	size, n := binary.Uvarint(plain)
	if n <= 0 || size > cluster.MaxKeyBytes || size > uint64(len(plain)-n) {
		return "", 0, nil, errFormat
	}
	plain = plain[n:]
	return string(plain[:size]), born, plain[size:], nil
}

// ownerRecord is the value of an owner's key: the lease, and who holds the lease. The key has the lease itself: they
// end together.
type ownerRecord struct {
	Lease   int64    `json:"lease"`
	Holders []string `json:"holders"`

	create, modify uint64
}

func (c *core) sealOwner(owner string, r ownerRecord) ([]byte, error) {
	plain, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return c.sealer.Seal(plain, owners+owner)
}

func (c *core) openOwner(owner string, sealed []byte) (r ownerRecord, err error) {
	plain, err := c.sealer.Open(sealed, owners+owner)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(plain, &r); err != nil || r.Lease == 0 {
		return r, fmt.Errorf("the record of the lease of %q is damaged: %w", owner, errFormat)
	}
	return r, nil
}
