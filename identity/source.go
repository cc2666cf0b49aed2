package identity

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"time"
)

// following is the latest good JWK set of a source that changes.
type following struct {
	current  atomic.Pointer[KeySet]
	document []byte
	err      error     // of the document
	good     time.Time // when the source last had the current set
}

// Keys makes the source a KeySource.
func (f *following) Keys() *KeySet { return f.current.Load() }

// take takes over a document, or the error in getting one, and reports whether the set changed. When there has been no
// good document for the grace, no key is trusted any more. The errors begin with what was tried. It must not be called
// concurrently.
func (f *following) take(document []byte, err error, what string, grace time.Duration) (changed bool, _ error) {
	if err == nil && (f.document == nil || !bytes.Equal(document, f.document)) {
		var set *KeySet
		f.document = document
		if set, f.err = ParseJWKS(document); f.err == nil {
			f.current.Store(set)
			changed = true
		}
	}
	if err == nil {
		err = f.err
	}
	if err == nil {
		f.good = time.Now()
		return changed, nil
	}
	err = fmt.Errorf("%s: %w", what, err)
	if time.Since(f.good) < grace {
		return false, err
	}
	f.current.Store(nil)
	f.document = nil     // a document that comes back is taken over even if it is the same
	if f.good.IsZero() { // there were no keys
		return false, err
	}
	return false, fmt.Errorf("no key of it is trusted any more after %v: %w", grace, err)
}
