package polltest

import (
	"strings"
	"sync"
)

// Log is text that a test reads while others write it.
type Log struct {
	mu   sync.Mutex // guards the field below
	text strings.Builder
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Has reports whether some words have been written.
func (l *Log) Has(words string) bool { return strings.Contains(l.String(), words) }
