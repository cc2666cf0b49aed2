package filehead_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"taskapi/internal/filehead"
	"taskapi/internal/must"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := filehead.Read(path, 4); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	must.OK(t, os.WriteFile(path, []byte("text"), 0o600))
	for most, want := range map[int64]string{3: "tex", 4: "text", 5: "text"} {
		if got, err := filehead.Read(path, most); err != nil || string(got) != want {
			t.Errorf("%d bytes: %q, %v", most, got, err)
		}
	}
}
