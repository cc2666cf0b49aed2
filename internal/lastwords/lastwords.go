// Package lastwords keeps what a process writes to its standard error, to explain its end.
package lastwords

import (
	"bytes"
	"cmp"
	"strings"
)

// Most is how many bytes are kept without a Limit. Go's runtime says first why a program ends, and then where.
const Most = 4 << 10

// Buffer keeps the first bytes of its writer's text.
type Buffer struct {
	bytes.Buffer

	Limit int // bytes; 0 for Most
}

// Write takes all bytes, and never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), max(0, cmp.Or(b.Limit, Most)-b.Len()))])
	return len(p), nil
}

// OutOfMemory reports whether a Go program ended because it got no memory, or none for another thread. At a bad moment
// its runtime ends by a SIGSEGV.
func (b *Buffer) OutOfMemory() bool {
	words := b.String()
	return strings.Contains(words, "out of memory") || strings.Contains(words, "cannot allocate memory") ||
		strings.Contains(words, "Resource temporarily unavailable") || strings.HasPrefix(words, "SIGSEGV")
}
