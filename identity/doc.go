// Package identity says who somebody is. It promises the claims of a token, an Ed25519 key ring on disk (32-byte seeds, rotated,
// sealed), tokens signed with it, a strict verification of tokens, and the public keys as a JWK set. It never knows HTTP requests
// or the state of an allocation: whether the one that a token speaks of still lives is for others to ask, on every use.
//
// # Tokens
//
// One way to read a token is left before anything is believed: Check holds its form, header and claims to rules of our own, and what
// it decoded is what everybody uses. Then comes the key, by a map look-up, then the signature, then the clock and the audience. A
// refused token is an *Error with one of a closed set of reasons and no byte of the token in its text. The example shows
// a token from its signing to the removal of its key.
//
// # Keys
//
// A ring is one sealed file. Rotate makes a new active key and forgets the seed of the one before, which goes on verifying what it
// signed until it is removed. Other issuers' keys come from JWK sets: a file, or a URL that is fetched in the background and
// never because of a request. They vouch for tasks, never for the operator.
//
// The seal keeps keys from who gets hold of the ring's directory without the seal key: a backup, a copied disk image, a snapshot.
// It protects only where the two are apart, so put KeyringConfig.SealKeyFile on another disk or on a tmpfs that is filled at boot. In
// its default place beside the ring it keeps the ring from being changed or damaged unnoticed, and no more. It does not protect from
// the superuser, from a process of the same user, or from who reads this process's memory.
//
// # What stays
//
// Other modules may use it. Exported names, the reasons, the format of the ring's file and the names of claims stay as they are within a major
// version; reasons may be added. It builds on Linux and on macOS, where watched files are looked at every second.
package identity
