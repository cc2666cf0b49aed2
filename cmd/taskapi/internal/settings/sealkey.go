package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"taskapi/internal/privatefile"
)

// KeyFile is the file with the key that seals the key ring of a data directory.
type KeyFile struct {
	File string // empty for the one in the key ring
	From string // where the settings say so
	path string // of the settings file
}

// SealKeyOf returns what the settings file of a data directory says.
func SealKeyOf(dir string) (KeyFile, error) {
	k := KeyFile{path: filepath.Join(dir, Name)}
	all, err := ReadData(dir)
	if v := all.get(SealKey); v != nil {
		k.File, k.From = v.Texts[0], v.From
	}
	return k, err
}

// Remember writes a key file into the settings file, which has none or another.
func (k KeyFile) Remember(file string) error {
	text := "keyring {\n  seal_key = " + strconv.Quote(file) + "\n}\n"
	if k.File != "" {
		return fmt.Errorf("%s names another key file, %s: change that line to %s", k.From, k.File, file)
	}
	had, err := os.ReadFile(k.path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return privatefile.Write(k.path, append(had, text...))
}
