// Package clustertest helps to test a cluster.Store and the packages that keep data in one. It has calls that must
// succeed. The tests that every store must pass are those of allocrunner/cluster/stores.
package clustertest

import (
	"fmt"
	"testing"

	"taskapi/allocrunner/cluster"
)

// Put writes an entry and returns the commit's index.
func Put(t testing.TB, s cluster.Store, key, value string, conditions ...cluster.Condition) uint64 {
	t.Helper()
	return Commit(t, s, cluster.Txn{If: conditions, Then: []cluster.Operation{Set(key, value)}})
}

// Commit commits a transaction that has to succeed.
func Commit(t testing.TB, s cluster.Store, txn cluster.Txn) uint64 {
	t.Helper()
	index, err := s.Commit(t.Context(), txn)
	if err != nil {
		t.Fatalf("commit %d operations, the first of %q: %v", len(txn.Then), txn.Then[0].Key, err)
	}
	return index
}

// Txn is the transaction that makes some operations.
func Txn(operations ...cluster.Operation) cluster.Txn { return cluster.Txn{Then: operations} }

// Set is the operation that writes an entry.
func Set(key, value string) cluster.Operation {
	return cluster.Operation{Key: key, Value: []byte(value)}
}

// Delete is the operation that deletes one.
func Delete(key string) cluster.Operation { return cluster.Operation{Key: key, Delete: true} }

// Leased is the operation that writes an entry with a lease.
func Leased(key, value, owner string) cluster.Operation {
	return cluster.Operation{Key: key, Value: []byte(value), Lease: owner}
}

// Get returns an entry.
func Get(t testing.TB, s cluster.Store, key string) cluster.Entry {
	t.Helper()
	e, index, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	if e.Key != key || e.ModifyIndex > index || e.CreateIndex > e.ModifyIndex ||
		(e.CreateIndex == 0) != (e.ModifyIndex == 0) {
		t.Fatalf("get %q at index %d: %s", key, index, Describe(e))
	}
	return e
}

// List lists a span.
func List(t testing.TB, s cluster.Store, span cluster.Span) cluster.Page {
	t.Helper()
	page, err := s.List(t.Context(), span)
	if err != nil {
		t.Fatalf("list %+v: %v", span, err)
	}
	return page
}

// Hold holds a lease to the end of the test, or until it is closed.
func Hold(t testing.TB, s cluster.Store, owner string) cluster.Lease {
	t.Helper()
	l, err := s.Hold(t.Context(), owner)
	if err != nil {
		t.Fatalf("hold %q: %v", owner, err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Describe returns an entry as text, with the beginning of its value.
func Describe(e cluster.Entry) string {
	return fmt.Sprintf("%s=%.20q (%d, %d, %q)", e.Key, e.Value, e.CreateIndex, e.ModifyIndex, e.Lease)
}
