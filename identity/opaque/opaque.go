// Package opaque makes secrets in the form of a UUID that stand for tokens, for clients that accept nothing else. A
// secret is 128 random bits and is not stored. The file of its token is named by a hash of the secret, and sealed with
// a key that is derived from the secret. The package does not verify the tokens.
package opaque

import (
	"bytes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/unix"

	"taskapi/internal/flock"
	"taskapi/internal/privatefile"
)

// ErrFull means that the directory has Max tokens that have not expired.
var ErrFull = errors.New("too many secrets that have not expired")

// Max bounds the tokens of a directory.
const Max = 64

// lockTime is how long Mint waits for other calls of Mint.
const lockTime = 5 * time.Second

const (
	format  = "taskapi opaque 1 " // and when the token expires, in seconds since the Unix epoch
	maxFile = 64 << 10
	hashed  = "taskapi opaque name 1"
	sealed  = "taskapi opaque key 1"
)

// Is reports whether a text has the form of a secret: a UUID in lower case.
func Is(text string) bool {
	id, err := uuid.Parse(text)
	return err == nil && id.String() == text
}

// Mint stores a token in the directory, which is made if it is missing, and returns the secret that stands for the
// token. It removes files of expired tokens. Errors: ErrFull, privatefile.ErrExposed, wrapped.
func Mint(dir, token string, expires, now time.Time) (secret string, err error) {
	if err := privatefile.EnsureDir(dir); err != nil {
		return "", err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := flock.Lock(int(lock.Fd()), unix.LOCK_EX, lockTime); err != nil { // so that two don't exceed Max
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	switch n, err := prune(dir, now); {
	case err != nil:
		return "", err
	case n >= Max:
		return "", fmt.Errorf("%w: %s has %d: wait until one expires, or remove the directory, and all are refused",
			ErrFull, dir, n)
	}
	var id uuid.UUID
	rand.Read(id[:]) // never fails (crypto/rand)
	name, aead, err := derive(id)
	if err != nil {
		return "", err
	}
	head := fmt.Appendf(nil, "%s%d\n", format, expires.Unix())
	nonce := make([]byte, aead.NonceSize()) // zeros: the key seals nothing else
	return id.String(), privatefile.Create(filepath.Join(dir, name), aead.Seal(head, nonce, []byte(token), head))
}

// Token returns the token that a secret stands for. The error wraps fs.ErrNotExist if it stands for none.
func Token(dir, secret string) (string, error) {
	if !Is(secret) {
		return "", os.ErrNotExist
	}
	name, aead, err := derive(uuid.MustParse(secret))
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	file, _, err := privatefile.Read(path, maxFile)
	if err != nil {
		return "", err
	}
	end := bytes.IndexByte(file, '\n') + 1
	token, err := aead.Open(nil, make([]byte, aead.NonceSize()), file[end:], file[:end])
	if err != nil {
		return "", fmt.Errorf("%s is damaged: remove it, and make another secret", path)
	}
	return string(token), nil
}

// derive returns the name of a secret's file, and what seals it.
func derive(id uuid.UUID) (name string, aead cipher.AEAD, err error) {
	hash, err := hkdf.Key(sha256.New, id[:], nil, hashed, sha256.Size)
	if err != nil {
		return "", nil, err
	}
	key, err := hkdf.Key(sha256.New, id[:], nil, sealed, chacha20poly1305.KeySize)
	if err != nil {
		return "", nil, err
	}
	aead, err = chacha20poly1305.NewX(key)
	return hex.EncodeToString(hash), aead, err
}

// prune removes the files of expired tokens, and returns how many files are left.
func prune(dir string, now time.Time) (left int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		file, _, err := privatefile.Read(path, maxFile)
		head, _, _ := bytes.Cut(file, []byte("\n"))
		until, isHead := bytes.CutPrefix(head, []byte(format))
		at, numErr := strconv.ParseInt(string(until), 10, 64)
		expired := err == nil && isHead && numErr == nil && at <= now.Unix()
		if !expired || os.Remove(path) != nil {
			left++
		}
	}
	return left, nil
}
