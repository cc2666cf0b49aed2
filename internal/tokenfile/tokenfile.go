// Package tokenfile reads files in which an operator keeps a token of another program, such as Vault.
package tokenfile

import (
	"fmt"
	"path/filepath"
	"strings"

	"taskapi/internal/filehead"
)

// Max is how many bytes a token has at most: a batch token of Vault has some hundred.
const Max = 16 << 10

// Read returns the token in a file. A file without a token is an error: perhaps somebody is writing it.
func Read(path string) (string, error) {
	text, err := filehead.Read(path, Max+1)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if !Valid(token) {
		return "", fmt.Errorf("%s must have one line, which is a token", filepath.Clean(path))
	}
	return token, nil
}

// Valid reports whether a text can be a token, and so part of a header.
func Valid(text string) bool {
	return text != "" && len(text) <= Max && !strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' })
}
