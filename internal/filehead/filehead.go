// Package filehead reads the beginnings of files, which somebody else may have made too long.
package filehead

import (
	"io"
	"os"
)

// Read returns the first bytes of a file, at most as many; all of a shorter one.
func Read(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}
