// Package identity issues and verifies tokens that say which task, or which operator, a request comes from. It has the
// claims of a token, an Ed25519 key ring on disk (rotated, sealed), tokens signed with it, a strict verification of
// tokens, and the public keys as a JWK set. It knows neither HTTP requests nor the state of an allocation: on every use
// of a token, others have to ask whether its allocation still lives.
//
// # Tokens
//
// There is only one way to read an accepted token. Check holds its form, header and claims to strict rules before
// anything is believed, and everybody uses what Check decoded. Then the key is looked up in a map, and the signature,
// the clock and the audience are checked. A refused token is an *Error with one of a closed set of reasons and no byte
// of the token in its text. The example follows a token from its signing to the removal of its key.
//
// # Keys
//
// A ring is one sealed file. Rotate makes a new active key and forgets the seed of the one before. That key goes on
// verifying what it signed until it is removed. Other issuers' keys come from JWK sets: a file, or a URL that is
// fetched in the background and never because of a request. Other issuers can vouch for tasks, never for the operator.
//
// The seal protects the keys from somebody who has the ring's directory without the seal key: a backup, a copied disk
// image, a snapshot. It works only where the two are apart, so put KeyringConfig.SealKeyFile on another disk or on a
// tmpfs that is filled at boot. In its default place beside the ring, the seal key only makes changes of the ring and
// damage noticeable. The seal does not protect from the superuser, from a process of the same user, or from somebody
// who reads this process's memory.
//
// # Compatibility
//
// Other modules may use the package. Exported names, the reasons, the format of the ring's file and the names of claims
// stay as they are within a major version; reasons may be added. It builds on Linux and on macOS, where watched files
// are looked at every second.
package identity
