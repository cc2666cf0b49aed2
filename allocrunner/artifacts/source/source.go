// Package source reads the sources of artifacts, in the forms that Nomad takes, and tells whether one on this machine
// is in a directory that the settings allow. It opens nothing.
package source

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Kind is the way in which a source is fetched.
type Kind string

const (
	HTTP Kind = "http"
	Git  Kind = "git"
	Hg   Kind = "hg"
	File Kind = "file"
)

// Source is where an artifact comes from.
type Source struct {
	Kind Kind
	URL  *url.URL // without the options below; of a file only the path
	Sub  string   // the part of it that is wanted, a pattern; empty for all of it

	Archive  string // its type; empty for that of the name, NoArchive for none
	Checksum string // TYPE:HEX, HEX, or file:URL
	Filename string // of a file in a directory; empty for the last part of the URL
	Ref      string // of a repository: a branch, a tag or a commit
	Depth    int    // of the history of a repository; 0 for all
	SSHKey   []byte // private key
}

// Options are the names of the options that Parse knows. Others become a part of the URL.
var Options = []string{"archive", "checksum", "depth", "filename", "ref", "rev", "sshkey"}

// NoArchive says that a file is not unpacked.
const NoArchive = "-"

var schemes = map[Kind][]string{
	HTTP: {"http", "https"}, Git: {"https", "http", "ssh", "git", "file"}, Hg: {"https", "http", "ssh", "file"},
	File: {"file"},
}

// hosts are the hosts whose repositories need no scheme, as in github.com/OWNER/REPOSITORY.
var hosts = []string{"github.com", "gitlab.com", "bitbucket.org"}

// Parse reads a source and the options of its artifact, in which all references have been replaced. Errors name no
// option's value: the value may be secret.
func Parse(text string, options map[string]string) (*Source, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("source must be specified")
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return nil, errors.New("the source has a control character")
	}
	base, query, _ := strings.Cut(text, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, errors.New("what follows the ? of the source is no list of NAME=VALUE with & between them")
	}
	for _, k := range slices.Sorted(maps.Keys(options)) {
		values.Set(k, options[k])
	}
	var s Source
	if forced, rest, ok := strings.Cut(base, "::"); ok && !strings.ContainsAny(forced, ":/@[") {
		s.Kind, base = Kind(forced), rest
	}
	base, s.Sub = cutSub(base)
	if err := s.locate(base); err != nil {
		return nil, err
	}
	if err := s.take(values); err != nil {
		return nil, err
	}
	return &s, s.check()
}

// cutSub separates the part after // from a source, but for the // of a scheme.
func cutSub(base string) (whole, sub string) {
	offset := 0
	if i := strings.Index(base, "://"); i >= 0 {
		offset = i + len("://")
	}
	if i := strings.Index(base[offset:], "//"); i >= 0 {
		return base[:offset+i], strings.Trim(base[offset+i:], "/")
	}
	return base, ""
}

// locate sets the URL, and the kind if nothing has forced it.
func (s *Source) locate(base string) (err error) {
	switch host, rest, _ := strings.Cut(base, "/"); {
	case strings.Contains(base, "://"):
		if s.URL, err = url.Parse(base); err != nil {
			return errors.New("the source is no URL such as https://example.com/app.tar.gz")
		}
	case slices.Contains(hosts, host):
		owner, rest, _ := strings.Cut(rest, "/")
		repository, sub, _ := strings.Cut(rest, "/")
		if owner == "" || repository == "" {
			return fmt.Errorf("a repository is missing: %s/OWNER/REPOSITORY", host)
		}
		s.Kind, s.Sub = cmp.Or(s.Kind, Git), path.Join(sub, s.Sub)
		at := "/" + owner + "/" + strings.TrimSuffix(repository, ".git") + ".git"
		s.URL = &url.URL{Scheme: "https", Host: host, Path: at}
	case strings.HasPrefix(base, "/"):
		s.URL = &url.URL{Scheme: "file", Path: base}
	case strings.Contains(host, "@") && strings.Contains(host, ":"): // as ssh's: git@HOST:PATH
		user, at, _ := strings.Cut(base, "@")
		name, file, _ := strings.Cut(at, ":")
		s.Kind = cmp.Or(s.Kind, Git)
		s.URL = &url.URL{Scheme: "ssh", User: url.User(user), Host: name, Path: "/" + strings.TrimPrefix(file, "/")}
	default:
		return errors.New("the source has no scheme: write it as a URL, such as https://example.com/app.tar.gz")
	}
	switch scheme := s.URL.Scheme; {
	case s.Kind != "":
	case slices.Contains(schemes[HTTP], scheme):
		s.Kind = HTTP
	case scheme == "ssh":
		s.Kind = Git
	default:
		s.Kind = Kind(scheme)
	}
	return nil
}

// take moves the options from the query to their fields. The rest stays in the URL.
func (s *Source) take(values url.Values) error {
	get := func(name string) string {
		v := values.Get(name)
		values.Del(name)
		return v
	}
	s.Checksum = strings.TrimSpace(get("checksum"))
	if s.Archive = get("archive"); s.Archive != "" {
		if is, err := strconv.ParseBool(s.Archive); err == nil && !is {
			s.Archive = NoArchive
		}
	}
	switch s.Kind {
	case Git:
		s.Ref = get("ref")
		if depth := get("depth"); depth != "" {
			n, err := strconv.Atoi(depth)
			if err != nil || n < 0 {
				return errors.New("the option depth must be a number of commits")
			}
			s.Depth = n
		}
		if key := get("sshkey"); key != "" {
			var err error
			if s.SSHKey, err = base64.StdEncoding.DecodeString(key); err != nil {
				return errors.New("the option sshkey must be a private key in base64: `base64 -w0 id_ed25519`")
			}
		}
	case Hg:
		s.Ref = get("rev")
	default:
		s.Filename = get("filename")
	}
	s.URL.RawQuery = values.Encode()
	return nil
}

// absent are Nomad's kinds of sources that taskapi does not fetch, each with the way around.
var absent = map[Kind]string{
	"s3":  "s3 is not here: use the bucket's https URL, a signed one if the bucket is private",
	"gcs": "gcs is not here: use the bucket's https URL, such as https://storage.googleapis.com/BUCKET/OBJECT",
}

// check returns an error for a source that can't be fetched, or whose words a program could take for options.
func (s *Source) check() error {
	if why, ok := absent[s.Kind]; ok {
		return errors.New(why)
	}
	valid, ok := schemes[s.Kind]
	switch {
	case !ok:
		return fmt.Errorf("sources of the kind %q are not fetched: use https, http, git::, hg:: or file", s.Kind)
	case !slices.Contains(valid, s.URL.Scheme):
		return fmt.Errorf("%s:: can't fetch %q: use %s", s.Kind, s.URL.Scheme, strings.Join(valid, ", "))
	case s.URL.Scheme == "file" && (s.URL.Host != "" || !strings.HasPrefix(s.URL.Path, "/")):
		return errors.New("a source on this machine needs an absolute path: file:///PATH")
	case s.URL.Scheme != "file" && (s.URL.Hostname() == "" || strings.HasPrefix(s.URL.Host, "-")):
		return errors.New("the source has no host: write it as https://HOST/PATH")
	case s.URL.User != nil && strings.HasPrefix(s.URL.User.Username(), "-"):
		return errors.New("the user in the source must not begin with a hyphen")
	case strings.HasPrefix(s.Ref, "-") || strings.ContainsFunc(s.Ref, unicode.IsControl):
		return errors.New("ref and rev must name a branch, a tag or a commit: none begins with a hyphen")
	case slices.Contains(strings.Split(s.Sub, "/"), ".."):
		return errors.New("the part after // has a .. that leads out of the source")
	case s.Filename != "" && (s.Filename != path.Base(s.Filename) || s.Filename == ".." || s.Filename == "."):
		return errors.New("the option filename must be a name without a slash")
	case s.Checksum != "" && s.IsRepository():
		return errors.New("a repository has no checksum: use a commit as ref")
	}
	if s.Checksum == "" || strings.HasPrefix(s.Checksum, "file:") {
		return nil
	}
	_, _, err := ParseChecksum(s.Checksum)
	return err
}

// CheckDirs returns an error for a source on this machine that is in none of the directories, whatever links lead
// there. dirs is the setting artifact.file_dirs. Errors: *fs.PathError when there is no such file.
func (s *Source) CheckDirs(dirs []string) error {
	if s.URL.Scheme != "file" {
		return nil
	}
	if len(dirs) == 0 {
		return fmt.Errorf("no directory of this machine may be copied from: allow %s with the setting artifact.file_dirs",
			filepath.Dir(s.URL.Path))
	}
	real, err := filepath.EvalSymlinks(s.URL.Path)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if top, err := filepath.EvalSymlinks(dir); err == nil {
			if rel, err := filepath.Rel(top, real); err == nil && filepath.IsLocal(rel) {
				return nil
			}
		}
	}
	return fmt.Errorf("%s is in none of the directories of the setting artifact.file_dirs: %s", s.URL.Path,
		strings.Join(dirs, ", "))
}

// IsRepository reports whether git or hg fetches the source.
func (s *Source) IsRepository() bool { return s.Kind == Git || s.Kind == Hg }

// String returns the source for people, without its user, password and options.
func (s *Source) String() string {
	u := url.URL{Scheme: s.URL.Scheme, Host: s.URL.Host, Path: s.URL.Path}
	if s.Sub != "" {
		u.Path += "//" + s.Sub
	}
	if s.IsRepository() {
		return string(s.Kind) + "::" + u.String()
	}
	return u.String()
}

// Shown returns a source, valid or not, for people, without what may be secret.
func Shown(text string) string {
	if s, err := Parse(text, nil); err == nil {
		return s.String()
	}
	text, _, _ = strings.Cut(text, "?")
	before, after, ok := strings.Cut(text, "@")
	if i := strings.Index(before, "://"); ok && i >= 0 {
		return before[:i+len("://")] + after
	}
	return text
}

// sizes are the types of checksums, with their lengths in bytes.
var sizes = map[string]int{"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}

// ParseChecksum reads TYPE:HEX, or HEX alone, whose length tells the type.
func ParseChecksum(text string) (kind string, sum []byte, err error) {
	kind, digits, ok := strings.Cut(text, ":")
	if !ok {
		kind, digits = "", text
	}
	kind = strings.ToLower(kind)
	if sum, err = hex.DecodeString(digits); err != nil {
		return "", nil, errors.New("the checksum must be written in hexadecimal, as in sha256:5891b5b5…")
	}
	if !ok {
		for name, size := range sizes {
			if size == len(sum) {
				return name, sum, nil
			}
		}
	}
	switch size, known := sizes[kind]; {
	case !known:
		return "", nil, errors.New("the checksum must begin with file: or with its type, such as sha256:5891b5b5…")
	case size != len(sum):
		return "", nil, fmt.Errorf("a checksum of the type %s has %d hexadecimal digits, and this one has %d", kind, 2*size,
			len(digits))
	}
	return kind, sum, nil
}
