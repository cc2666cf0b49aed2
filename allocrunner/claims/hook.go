package claims

import (
	"context"
	"errors"
	"os"
	"sync"
)

// Hook is an allocation's hook that ends its claims with the allocation. It is also a lease, for the keeper. Other
// hooks take claims by its Holder in their Prerun.
type Hook struct {
	table Table
	id    string

	mu     sync.Mutex // guards the field below
	holder *Holder    // nil before it is needed, and after the end
}

// NewHook returns the hook of an allocation. It does no I/O.
func NewHook(table Table, id string) *Hook { return &Hook{table: table, id: id} }

// Name returns the name of the hook.
func (h *Hook) Name() string { return "claims" }

// Holder returns the holder of the allocation's claims. Errors: those of Hold.
func (h *Hook) Holder() (*Holder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	if h.holder == nil {
		h.holder, err = h.table.Hold(h.id)
	}
	return h.holder, err
}

// Files returns the files that the keeper keeps open.
func (h *Hook) Files() []*os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holder == nil {
		return nil
	}
	return h.holder.Files()
}

// Postrun ends the claims of an allocation that has ended.
func (h *Hook) Postrun(context.Context) error { return errors.Join(h.table.Forget(h.id), h.close()) }

// Destroy ends the claims of an allocation whose end left them.
func (h *Hook) Destroy(ctx context.Context) error { return h.Postrun(ctx) }

// Shutdown leaves the claims to the keeper, which holds them until another process resumes the allocation.
func (h *Hook) Shutdown() { _ = h.close() } // nothing was written

func (h *Hook) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holder == nil {
		return nil
	}
	err := h.holder.Close()
	h.holder = nil
	return err
}
