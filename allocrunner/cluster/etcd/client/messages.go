package client

// The messages of etcd's JSON gateway, with the fields that this package uses. The gateway writes 64-bit numbers as
// text, and bytes in base64, as encoding/json does.

// Header is the part that all answers have in common.
type Header struct {
	ClusterID uint64 `json:"cluster_id,string"`
	Revision  uint64 `json:"revision,string"`
}

// KV is a key with its value.
type KV struct {
	Key            []byte `json:"key"`
	Value          []byte `json:"value"`
	CreateRevision uint64 `json:"create_revision,string"`
	ModRevision    uint64 `json:"mod_revision,string"`
	Lease          int64  `json:"lease,string"`
}

// RangeRequest asks for the keys from Key to End, without End; for Key alone if there is no End.
type RangeRequest struct {
	Key      []byte `json:"key"`
	End      []byte `json:"range_end,omitempty"`
	Limit    int    `json:"limit,string,omitempty"`
	Revision uint64 `json:"revision,string,omitempty"`
	KeysOnly bool   `json:"keys_only,omitempty"`
	Order    string `json:"sort_order,omitempty"`  // ASCEND or DESCEND
	Target   string `json:"sort_target,omitempty"` // such as MOD
	Count    bool   `json:"count_only,omitempty"`
}

// RangeResponse has the keys of a range.
type RangeResponse struct {
	Header Header `json:"header"`
	KVs    []KV   `json:"kvs"`
	More   bool   `json:"more"`
	Count  int    `json:"count,string"`
}

// Compare is a condition: the target of a key has a number, which is 0 for a key that is not there.
type Compare struct {
	Key    []byte `json:"key"`
	Target string `json:"target"` // MOD or CREATE
	Mod    uint64 `json:"mod_revision,string,omitempty"`
	Create uint64 `json:"create_revision,string,omitempty"`
}

// Put writes a key.
type Put struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
	Lease int64  `json:"lease,string,omitempty"`
}

// Delete deletes a key.
type Delete struct {
	Key []byte `json:"key"`
}

// Op is one operation of a transaction.
type Op struct {
	Put    *Put          `json:"request_put,omitempty"`
	Delete *Delete       `json:"request_delete_range,omitempty"`
	Range  *RangeRequest `json:"request_range,omitempty"`
}

// Txn applies its operations: Success if all conditions hold, else Failure.
type Txn struct {
	Compare []Compare `json:"compare,omitempty"`
	Success []Op      `json:"success,omitempty"`
	Failure []Op      `json:"failure,omitempty"`
}

// TxnResponse says whether the conditions held, and has the answer to each operation.
type TxnResponse struct {
	Header    Header       `json:"header"`
	Succeeded bool         `json:"succeeded"`
	Responses []OpResponse `json:"responses"`
}

// OpResponse answers one operation.
type OpResponse struct {
	Range  RangeResponse `json:"response_range"`
	Delete struct {
		Deleted int `json:"deleted,string"`
	} `json:"response_delete_range"`
}

type leaseRequest struct {
	ID   int64 `json:"ID,string"`
	TTL  int64 `json:"TTL,string,omitempty"`
	Keys bool  `json:"keys,omitempty"`
}

type leaseResponse struct {
	Header Header   `json:"header"`
	TTL    int64    `json:"TTL,string"`
	Keys   [][]byte `json:"keys"`
}

type watchRequest struct {
	Create struct {
		Key      []byte `json:"key"`
		End      []byte `json:"range_end"`
		Start    uint64 `json:"start_revision,string"`
		Fragment bool   `json:"fragment"`
	} `json:"create_request"`
}

// Event is one change of a key.
type Event struct {
	Type string `json:"type"` // DELETE; empty for a key that was written
	KV   KV     `json:"kv"`
}

// Deleted reports whether the key was deleted.
func (e *Event) Deleted() bool { return e.Type == "DELETE" }

// WatchResponse has changes of one revision or of several, each whole unless Fragment is set.
type WatchResponse struct {
	Header    Header  `json:"header"`
	Events    []Event `json:"events"`
	Created   bool    `json:"created"`
	Canceled  bool    `json:"canceled"`
	Reason    string  `json:"cancel_reason"`
	Compacted uint64  `json:"compact_revision,string"` // changes before this revision are gone
	Fragment  bool    `json:"fragment"`                // more of the same revision follows
}

// PrefixEnd returns the end of the range of all keys with a prefix, which must not be empty.
func PrefixEnd(prefix string) []byte {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return []byte{0}
}
