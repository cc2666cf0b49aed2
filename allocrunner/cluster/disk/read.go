package disk

import (
	"bytes"
	"context"

	"taskapi/allocrunner/cluster"
)

// read runs do while the table is as new as the log was when read was called, or newer.
func (s *Store) read(ctx context.Context, do func() error) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	s.mu.RLock()
	ok, err := s.current()
	if ok {
		defer s.mu.RUnlock()
		return do()
	}
	s.mu.RUnlock()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.advanceLocked(); err != nil {
		return err
	}
	return do()
}

// Get returns an entry.
func (s *Store) Get(ctx context.Context, key string) (e cluster.Entry, index uint64, err error) {
	err = s.read(ctx, func() error {
		index = s.table.Index
		e, err = s.getLocked(key)
		return err
	})
	return e, index, err
}

func (s *Store) getLocked(key string) (cluster.Entry, error) {
	e := s.table.Live(key, s.live())
	if e == nil {
		return cluster.Entry{Key: key}, nil
	}
	return s.entry(e, new([]byte))
}

// entry reads the value of an entry into a buffer. The value that it returns is a part of the buffer.
func (s *Store) entry(e *entry, buffer *[]byte) (cluster.Entry, error) {
	w, err := readEntry(s.log, e, buffer)
	if err != nil {
		return cluster.Entry{}, s.damaged(err)
	}
	found := e.Found(w.Value)
	if found.Damaged = w.Damaged; w.Damaged {
		found.Value = nil
	}
	return found, nil
}

// List returns entries.
func (s *Store) List(ctx context.Context, span cluster.Span) (page cluster.Page, err error) {
	err = s.read(ctx, func() error {
		found, more := s.table.List(span, s.live())
		page = cluster.Page{More: more, Index: s.table.Index}
		buffer := new([]byte)
		for _, e := range found {
			if span.Head == 0 {
				buffer = new([]byte)
			}
			entry, err := s.entry(e, buffer)
			if err != nil {
				return err
			}
			if span.Head > 0 {
				entry.Value = bytes.Clone(span.Cut(entry.Value))
			}
			page.Entries = append(page.Entries, entry)
		}
		return nil
	})
	if err != nil {
		return cluster.Page{}, err
	}
	return page, nil
}
