package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/flock"
	"taskapi/internal/privatefile"
)

// KeyFile is the file with the key that seals the key ring of a data directory.
type KeyFile struct {
	File string // empty for the one in the key ring
	From string // where the settings say so
	path string // of the settings file
}

// lockTime is more than a process needs to write the file.
const lockTime = 5 * time.Second

// SealKeyOf returns what the settings file of a data directory says.
func SealKeyOf(dir string) (KeyFile, error) {
	k := KeyFile{path: filepath.Join(dir, Name)}
	all, err := ReadData(dir)
	if v := all.get(SealKey); v != nil {
		k.File, k.From = v.Texts[0], v.From
	}
	return k, err
}

// Remember writes a key file into the settings file, unless another process has just done so, or it has another.
func (k KeyFile) Remember(file string) error {
	dir, err := os.Open(filepath.Dir(k.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := flock.Lock(int(dir.Fd()), unix.LOCK_EX, lockTime); err != nil {
		return fmt.Errorf("%s: %w", k.path, err)
	}
	if k, err = SealKeyOf(dir.Name()); err != nil || k.File == file {
		return err
	}
	quoted := strconv.Quote(file)
	if unquoted := strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(quoted); unquoted != `"`+file+`"` {
		return fmt.Errorf("the path %s can't be written into %s: give one without control characters", quoted, k.path)
	}
	quoted = strings.NewReplacer("${", "$${", "%{", "%%{").Replace(quoted) // else they begin an expression
	text := "keyring {\n  seal_key = " + quoted + "\n}\n"
	if k.File != "" {
		return fmt.Errorf("%s names another key file, %s: change that line to %s", k.From, k.File, file)
	}
	had, err := os.ReadFile(k.path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return privatefile.Write(k.path, append(had, text...))
}
