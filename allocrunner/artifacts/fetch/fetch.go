// Package fetch fetches artifacts, in a process of its own: what comes from the network is read and unpacked there, by
// the user of the task, who has no further rights there. It promises that
//   - nothing is written outside of the task's directory and the shared one, whatever an archive, a repository or the
//     task has made there;
//   - an artifact is unpacked and checked in a directory of its own, and only then moved to its destination;
//   - no connection is made to a link-local address, except to a name server, or by a proxy for itself;
//   - size, number of files, memory, processor time and time are bounded;
//   - no entry of an archive is a device, has the set-user-ID bit, or links to what is not part of the artifact;
//   - the process ends, with the programs that it runs, when the one that started it ends.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"taskapi/allocrunner/artifacts/source"
)

// Request is what a process is to fetch for a task.
type Request struct {
	Dirs Dirs
	// Stage is an unused path below Dirs.Task, for files that are not complete yet. Other users must not be able to read
	// its parent directory.
	Stage     string
	FileDirs  []string
	Limits    Limits
	Artifacts []Artifact
}

// Dirs are the directories that may be written to, absolute.
type Dirs struct{ Task, Shared string }

// Limits bound the artifacts of a request.
type Limits struct {
	HTTPTimeout time.Duration
	GitTimeout  time.Duration
	HgTimeout   time.Duration
	Download    int64 // bytes
	Unpacked    int64 // bytes
	Files       int   // in an archive, directories and links included
}

// Artifact is one artifact. Its references have been replaced.
type Artifact struct {
	Source      string
	Options     map[string]string
	Headers     map[string]string
	Insecure    bool
	Mode        string // any, dir or file
	Shared      bool   // the destination is below Dirs.Shared
	Destination string // relative; "." for the directory itself
}

// The modes of an artifact.
const (
	ModeFile = "file"
	ModeDir  = "dir"
)

// Report is about one of the artifacts of a request.
type Report struct {
	Index int
	Done  bool   // it is at its destination
	Error string // why it is not
	Bytes int64  // how much has been received so far
	Total int64  // of how much; 0 if that is not known
}

// fetcher fetches one artifact.
type fetcher struct {
	Request

	artifact Artifact
	source   *source.Source
	stage    string // a directory of its own, absolute
	received func(n, total int64)
}

// fetch fetches an artifact, and moves it to its destination.
func (f *fetcher) fetch(ctx context.Context) error {
	if err := os.Mkdir(f.stage, 0o700); err != nil {
		return err
	}
	defer removeAll(f.stage)
	if err := f.source.CheckDirs(f.FileDirs); err != nil {
		return err
	}
	home, tree := filepath.Join(f.stage, "home"), filepath.Join(f.stage, "tree")
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	switch f.source.Kind {
	case source.Git, source.Hg:
		if err := (&repository{f, home, tree}).clone(ctx); err != nil {
			return err
		}
	default:
		if err := f.file(ctx, filepath.Join(home, "file"), tree); err != nil {
			return err
		}
	}
	return f.deliver(tree)
}

// file fetches a file or a directory, and unpacks an archive, to tree: a directory, or the file itself for mode file.
func (f *fetcher) file(ctx context.Context, at, tree string) error {
	s := f.source
	name := path.Base(s.URL.Path)
	if s.Kind == source.File {
		if info, err := os.Stat(s.URL.Path); err != nil {
			return err
		} else if info.IsDir() {
			if s.Checksum != "" || f.artifact.Mode == ModeFile {
				return fmt.Errorf("%s is a directory: it has no checksum, and mode %q is for files", s.URL.Path, ModeFile)
			}
			return f.copyDir(s.URL.Path, tree)
		}
		if err := f.copyFile(s.URL.Path, at); err != nil {
			return err
		}
	} else if err := f.download(ctx, s.URL, at, f.Limits.Download); err != nil {
		return err
	}
	if s.Checksum != "" {
		if err := f.verify(ctx, at); err != nil {
			return err
		}
	}
	kind, err := archiveOf(s.Archive, name)
	if err != nil {
		return err
	}
	if kind != "" {
		if s.Filename != "" {
			name = s.Filename
		}
		return f.unpack(ctx, kind, at, name, tree)
	}
	switch {
	case f.artifact.Mode == ModeFile:
		return os.Rename(at, tree)
	case f.artifact.Mode == ModeDir:
		return fmt.Errorf("mode %q needs an archive or a repository, and the source is a file: say what it is by the "+
			"option archive, such as archive = \"zip\", or use mode \"any\"", ModeDir)
	case s.Filename != "":
		name = s.Filename
	case name == "/" || name == "." || name == "..":
		return errors.New("the URL ends without the name of a file: give one by the option filename")
	}
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	return os.Rename(at, filepath.Join(tree, name))
}

// deliver checks a fetched artifact, and moves it to its destination.
func (f *fetcher) deliver(tree string) error {
	if sub := f.source.Sub; sub != "" {
		info, err := os.Lstat(tree)
		if err != nil || !info.IsDir() {
			return fmt.Errorf("the source is a file, and has no part %q", sub)
		}
		found, err := filepath.Glob(filepath.Join(tree, filepath.FromSlash(sub)))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("the source has %d parts that match %q after //, and must have one", len(found), sub)
		}
		if tree, err = within(tree, found[0]); err != nil {
			return err
		}
	}
	if err := inspect(tree); err != nil {
		return err
	}
	return f.install(tree)
}

// within returns the path of a part, whose directories are no links. A link on the way to the part must stay in the
// tree: its target is moved.
func within(tree, part string) (string, error) {
	top, err := filepath.EvalSymlinks(tree)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(part))
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(top, dir); part != tree && (err != nil || !filepath.IsLocal(rel)) {
		name, _ := filepath.Rel(tree, part) // both are absolute
		return "", fmt.Errorf("the part %q is behind a link, which leads out of the artifact", name)
	}
	return filepath.Join(dir, filepath.Base(part)), nil
}

// maxError bounds an error's text, in bytes: it may have a name from an archive.
const maxError = 1000

// clean returns an error's text without what may be secret: values of headers and options, and a password.
func (f *fetcher) clean(err error) string {
	var secrets []string
	for _, value := range f.artifact.Headers {
		secrets = append(secrets, value)
	}
	if f.source != nil {
		secrets = append(secrets, "?"+f.source.URL.RawQuery)
		if user := f.source.URL.User; user != nil {
			password, _ := user.Password()
			secrets = append(secrets, user.String()+"@", password)
		}
	}
	text := strings.ReplaceAll(err.Error(), f.stage+"/", "")
	for _, secret := range secrets {
		if len(secret) > 2 {
			text = strings.ReplaceAll(text, secret, "…")
		}
	}
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "…"
	}
	return text
}
