package lastwords_test

import (
	"fmt"
	"strings"
	"testing"

	"taskapi/internal/lastwords"
)

func TestBuffer(t *testing.T) {
	var b lastwords.Buffer
	fmt.Fprint(&b, "fatal error: runtime: ")
	if b.OutOfMemory() {
		t.Errorf("%q is no lack of memory", b.String())
	}
	fmt.Fprint(&b, "out of memory\n")
	rest := strings.Repeat("goroutine\n", lastwords.Most)
	if n, err := b.Write([]byte(rest)); n != len(rest) || err != nil {
		t.Errorf("%d bytes taken of %d, %v", n, len(rest), err)
	}
	if n, err := b.Write([]byte("more")); n != 4 || err != nil || b.Len() != lastwords.Most || !b.OutOfMemory() {
		t.Errorf("%d, %v; %d bytes kept, want %d", n, err, b.Len(), lastwords.Most)
	}
}
