// Package auth authenticates and authorizes requests: it finds out which Principal sends a request, and what that
// principal may do. Its Authenticator takes the token from a request's headers, verifies it once, and caches the
// verdict. On every request it checks what may have changed since: the clock, the trust in the key, the allocation's
// life, and whether the token may be used on this socket at all. A revoked, expired or terminal identity is therefore
// refused on the very next request.
//
// It also promises:
//   - A bad credential is answered with 400, 401, 403 or 429, never with a 5xx, and no answer says why a token is bad.
//   - All memory that callers can fill is bounded, and bad tokens never push good ones out of a cache.
//   - A good token that is cached is never limited and costs no allocation.
//   - No byte of a token is kept, logged, audited or put into an error: the caches are keyed by keyed hashes.
//
// It never signs, runs no tasks, and knows no routes. Package handlers calls Authenticate for every request before it
// looks at the path, and Authorize with the capabilities of the route. Package handlers/apierror has the words with
// which a refusal is answered.
//
// To add a capability, see capability.go; a field of the audit log, audit_record.go; a limit, package limitset; a kind
// of bad token, package badtokens.
//
// Other modules may use it: exported names, the names of reasons and capabilities, and the fields of Record stay as
// they are within a major version, and more may be added. It builds on Linux and macOS.
package auth
