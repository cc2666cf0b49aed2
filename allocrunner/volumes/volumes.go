// Package volumes gives tasks the host volumes that their job asks for: directories of the machine, which the machine's
// settings name. A driver that mounts gets mounts; for other drivers, the task's directory gets a symbolic link. The
// package promises that only root and this process's user can exchange a volume's directory for another one, that links
// are made only below the task's directory, and that nothing in a volume is ever changed or removed.
package volumes

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/safedir"
)

// Volume is a host volume of the machine.
type Volume struct {
	Name     string
	Path     string // absolute
	ReadOnly bool
}

// Form is the text of a volume.
const Form = "NAME=PATH[,ro]"

// writable ends the text of a volume whose path would be mistaken for one with a suffix.
const readOnlySuffix, writable = ",ro", ",rw"

// validName reports whether the source of a volume block, with the index of a per_alloc volume, can be the name.
func validName(name string) bool {
	matches, _ := regexp.MatchString(`^[a-zA-Z0-9_-]+(\[[0-9]+\])?$`, name) // the expression is correct
	return matches && len(name) <= 128
}

// Parse returns the volume of a text in that form.
func Parse(text string) (v Volume, err error) {
	name, path, ok := strings.Cut(text, "=")
	if !ok {
		return v, fmt.Errorf("%q must be %s", text, Form)
	}
	v = Volume{Name: name}
	if v.Path, ok = strings.CutSuffix(path, writable); !ok {
		v.Path, v.ReadOnly = strings.CutSuffix(path, readOnlySuffix)
	}
	switch {
	case !validName(name):
		return v, fmt.Errorf("the name %q of a host volume must be 1 to 128 letters, digits, - and _, and may end with an "+
			"index such as [0]", name)
	case !filepath.IsAbs(v.Path):
		return v, fmt.Errorf("the path of the host volume %q is %q: it must be absolute, such as /srv/%[1]s", name, v.Path)
	}
	v.Path = filepath.Clean(v.Path)
	return v, nil
}

// ParseAll returns the volumes of texts. Errors: also two of one name.
func ParseAll(texts []string) ([]Volume, error) {
	var list []Volume
	for _, text := range texts {
		v, err := Parse(text)
		if err == nil && slices.ContainsFunc(list, func(had Volume) bool { return had.Name == v.Name }) {
			err = fmt.Errorf("there are two host volumes of the name %q", v.Name)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// String returns the volume's text.
func (v Volume) String() string {
	text := v.Name + "=" + v.Path
	switch {
	case v.ReadOnly:
		text += readOnlySuffix
	case strings.HasSuffix(text, readOnlySuffix), strings.HasSuffix(text, writable):
		text += writable
	}
	return text
}

// Check returns why the volume can't be used now: its path is no directory, is below the data directory, or somebody
// could exchange it for another one.
func (v Volume) Check(dataDir string) error {
	_, err := v.check(dataDir)
	return err
}

// check is Check, and returns the path without links.
func (v Volume) check(dataDir string) (string, error) {
	path, err := v.resolve()
	if err == nil {
		err = outside(path, dataDir)
	}
	if err != nil {
		return "", fmt.Errorf("the host volume %q: %w", v.Name, err)
	}
	return path, nil
}

// resolve returns the path without links. Only root and this process's user may have made the links.
func (v Volume) resolve() (string, error) {
	if _, err := safedir.Trust(filepath.Dir(v.Path)); err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(v.Path) // the last name may be a link of those who may change its directory
	if err == nil && path != v.Path {
		_, err = safedir.Trust(filepath.Dir(path))
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory", v.Path)
	}
	return path, err
}

// outside refuses a path in the data directory, where keys and the files of all allocations are.
func outside(path, dataDir string) error {
	if dir, err := filepath.EvalSymlinks(dataDir); err == nil {
		dataDir = dir
	}
	if rel, err := filepath.Rel(dataDir, path); err == nil && filepath.IsLocal(rel) {
		return fmt.Errorf("%s is in the data directory %s: choose another directory", path, dataDir)
	}
	return nil
}

// The access modes of a host volume.
const (
	Reader       = "single-node-reader-only"
	Writer       = "single-node-writer"
	SingleWriter = "single-node-single-writer"
	MultiWriter  = "single-node-multi-writer"
)

// Source returns the name of the host volume that an allocation of this name uses.
func Source(request *api.VolumeRequest, allocName string) string {
	if at := strings.LastIndexByte(allocName, '['); request.PerAlloc && at >= 0 {
		return request.Source + allocName[at:]
	}
	return request.Source
}

// ErrReadOnly: a job wants to write to a volume that can only be read.
var ErrReadOnly = errors.New("can only be read here: set read_only = true in the volume block")

// Find returns the machine's volume that an allocation of this name uses.
func Find(machine []Volume, request *api.VolumeRequest, allocName string) (Volume, error) {
	name := Source(request, allocName)
	i := slices.IndexFunc(machine, func(v Volume) bool { return v.Name == name })
	switch {
	case i < 0:
		return Volume{}, Unknown(machine, name)
	case machine[i].ReadOnly && !request.ReadOnly:
		return Volume{}, fmt.Errorf("the host volume %q %w", name, ErrReadOnly)
	}
	return machine[i], nil
}

// Unknown returns the error for a volume that the machine does not have.
func Unknown(machine []Volume, name string) error {
	names := make([]string, len(machine))
	for i, v := range machine {
		names[i] = v.Name
	}
	return fmt.Errorf("the machine has no host volume %q; it has: %s. Declare it in the machine's settings file: "+
		"host_volume %[1]q { path = \"/...\" }", name, cmp.Or(strings.Join(names, ", "), "none"))
}
