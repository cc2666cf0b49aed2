package client

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The codes of gRPC that matter here.
const (
	codeInvalid   = 3
	codeNotFound  = 5
	codeExists    = 6
	codeDenied    = 7
	codeExhausted = 8
	codeFailed    = 9
	codeRange     = 11
	codeStranger  = 16
)

// Error is what etcd answers instead of a result.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return fmt.Sprintf("etcd says %.300q", e.Message) }

// uncertain reports whether the answer leaves open whether a change was made.
func (e *Error) uncertain() bool {
	switch e.Code {
	case codeInvalid, codeNotFound, codeExists, codeDenied, codeExhausted, codeFailed, codeRange, codeStranger:
		return false
	}
	return true
}

// is reports whether etcd has answered with one of some codes.
func is(err error, codes ...int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && slices.Contains(codes, e.Code)
}

// says reports whether the message of etcd's answer has one of some texts.
func says(err error, texts ...string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(e.Message, text) })
}

// isOldToken reports whether a message says that etcd no longer accepts a token, such as after its restart.
func isOldToken(message string) bool {
	return strings.Contains(message, "invalid auth token") || strings.Contains(message, "revision of auth store is old")
}

// IsNoLease reports whether a lease has ended.
func IsNoLease(err error) bool { return is(err, codeNotFound) }

// IsNoSpace reports whether etcd has no room for more.
func IsNoSpace(err error) bool { return says(err, "space exceeded") }

// IsTooLarge reports whether a request is larger than etcd takes, or has too many parts.
func IsTooLarge(err error) bool {
	return says(err, "too large", "too many operations", "larger than max")
}

// IsRefused reports whether etcd refuses the caller: its user, its password, or the rights of its user.
func IsRefused(err error) bool {
	return is(err, codeDenied, codeStranger) || says(err, "authentication failed", "user name is empty")
}

// UncertainError means that the request may have been carried out.
type UncertainError struct{ Err error }

func (e *UncertainError) Error() string { return e.Err.Error() }
func (e *UncertainError) Unwrap() error { return e.Err }

// IsUncertain reports whether a request may have been carried out in spite of the error.
func IsUncertain(err error) bool {
	_, ok := errors.AsType[*UncertainError](err)
	return ok
}
