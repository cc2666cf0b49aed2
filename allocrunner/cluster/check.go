package cluster

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Check returns ErrInvalid, and why, for a transaction beyond the bounds that every Store has.
func (t Txn) Check() error {
	if len(t.If) > MaxOperations || len(t.Then) > MaxOperations {
		return fmt.Errorf("%w: a transaction has at most %d conditions and as many operations, and this one %d and %d",
			ErrInvalid, MaxOperations, len(t.If), len(t.Then))
	}
	for _, c := range t.If {
		if err := CheckName("key", c.Key); err != nil {
			return err
		}
	}
	size := 0
	for _, op := range t.Then {
		if err := op.check(); err != nil {
			return err
		}
		size += len(op.Value)
	}
	if size > MaxTxnBytes {
		return fmt.Errorf("%w: the values of a transaction have at most %d bytes together, and these %d", ErrInvalid,
			MaxTxnBytes, size)
	}
	return nil
}

func (o Operation) check() error {
	if err := CheckName("key", o.Key); err != nil {
		return err
	}
	switch {
	case o.Delete && (o.Value != nil || o.Lease != ""):
		return fmt.Errorf("%w: the deletion of %q has a value or a lease", ErrInvalid, o.Key)
	case len(o.Value) > MaxValueBytes:
		return fmt.Errorf("%w: the value of %q has %d bytes; at most %d are kept", ErrInvalid, o.Key, len(o.Value),
			MaxValueBytes)
	case o.Lease != "":
		return CheckName("lease's owner", o.Lease)
	}
	return nil
}

// CheckName returns ErrInvalid, with the reason, for a name that can't be a key or a lease's owner.
func CheckName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the %s is empty", ErrInvalid, what)
	case len(name) > MaxKeyBytes:
		return fmt.Errorf("%w: the %s %.32q... has %d bytes; at most %d are kept", ErrInvalid, what, name, len(name),
			MaxKeyBytes)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%w: the %s %q is not UTF-8 text without control characters", ErrInvalid, what, name)
	}
	return nil
}
