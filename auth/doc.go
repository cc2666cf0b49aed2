// Package auth leads from a request to a Principal. Its Authenticator takes the token from a request's headers, has it verified once,
// caches the verdict, and looks on every single request at what may have changed since: the clock, the trust in the key,
// the allocation's life, and whether the token may be used on this socket at all. A revoked, expired or terminal identity
// is therefore refused on the very next request, however warm the cache is.
//
// What it promises besides:
//   - A bad credential is the caller's fault: 400, 401, 403 or 429, never a 5xx, and no answer says why a token is not valid.
//   - Everything it keeps is bounded, and junk never pushes out what is good.
//   - A good token that is cached is never limited and costs no allocation.
//   - No byte of a token is kept, logged, audited or put into an error: the caches are keyed by keyed hashes.
//
// It never signs, never runs tasks, and knows no route: handlers calls Authenticate for every request before it looks at the path, and
// Authorize with the capabilities of the route.
//
// Other modules may use it: exported names, the names of reasons and capabilities, and the fields of Record stay as they are within a major version;
// any of them may be added to. It builds on Linux and macOS.
package auth
