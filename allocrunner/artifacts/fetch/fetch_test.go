package fetch_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/artifacts/fetch"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/proc"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == fetch.Command {
		unix.Exit(fetch.Main(os.Args[2:])) // os.Exit would let the race detector sleep for a second
	}
	os.Exit(m.Run())
}

// deadline is for what takes milliseconds, and seconds on a busy machine.
var deadline = polltest.Deadline()

// place is where artifacts are fetched to.
type place struct {
	t       *testing.T
	req     fetch.Request
	process fetch.Process
	in      string // the directory of the stage
}

func newPlace(t *testing.T) *place {
	t.Helper()
	top := must.ShortDir(t)
	p := &place{t: t, req: fetch.Request{
		Dirs: fetch.Dirs{Task: filepath.Join(top, "task"), Shared: filepath.Join(top, "alloc")},
		Limits: fetch.Limits{HTTPTimeout: deadline, GitTimeout: deadline, HgTimeout: deadline, Download: 1 << 30,
			Unpacked: 1 << 30, Files: 100},
	}, process: fetch.Process{Env: []string{"PATH=" + os.Getenv("PATH")}}}
	for _, dir := range []string{p.req.Dirs.Task, p.req.Dirs.Shared, filepath.Join(p.req.Dirs.Task, "local")} {
		must.OK(t, os.Mkdir(dir, 0o755))
	}
	must.OK(t, os.Chmod(top, 0o755))
	return p
}

// get fetches one artifact, and returns its error's text.
func (p *place) get(a fetch.Artifact) string {
	p.t.Helper()
	if a.Destination == "" {
		a.Destination = "local"
	}
	p.req.Stage = filepath.Join(p.in, fetch.StagePrefix+"test")
	p.req.Artifacts = []fetch.Artifact{a}
	ctx, cancel := context.WithTimeout(p.t.Context(), deadline)
	defer cancel()
	text, ended := "", false
	err := fetch.Run(ctx, p.process, p.req, func(r fetch.Report) {
		if text = r.Error; text != "" || r.Done {
			ended = true
		}
	})
	if err != nil {
		text = err.Error()
	} else if !ended {
		p.t.Error("no report says how it ended")
	}
	for _, dir := range []string{p.req.Dirs.Task, p.req.Dirs.Shared} {
		if left, _ := filepath.Glob(filepath.Join(dir, fetch.StagePrefix+"*")); len(left) > 0 {
			p.t.Errorf("left behind: %v", left)
		}
	}
	return text
}

// tree is what lies below the place: files with mode and content, links with their targets, directories with a slash.
func (p *place) tree() map[string]string {
	p.t.Helper()
	all := map[string]string{}
	top := filepath.Dir(p.req.Dirs.Task)
	err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(top, path)
		info, err := e.Info()
		switch {
		case err != nil:
			return err
		case e.IsDir():
			entries, err := os.ReadDir(path)
			if len(entries) == 0 && err == nil {
				all[name+"/"] = strings.TrimPrefix(info.Mode().String(), "drwxr-xr-x")
			}
			return err
		case e.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			all[name] = "-> " + target
			return err
		}
		content, err := os.ReadFile(path)
		all[name] = fmt.Sprintf("%v %.20s", info.Mode(), content)
		return err
	})
	must.OK(p.t, err)
	delete(all, "alloc/")
	return all
}

func (p *place) want(text string, want map[string]string) {
	p.t.Helper()
	p.wantWords(text, "")
	p.wantTree(want)
}

// wantWords requires an error with the words, or none.
func (p *place) wantWords(text, words string) {
	p.t.Helper()
	if words == "" && text != "" || !strings.Contains(text, words) {
		p.t.Errorf("got %q, want %q", text, words)
	}
}

// wantTree requires what lies below the place.
func (p *place) wantTree(want map[string]string) {
	p.t.Helper()
	if diff := cmp.Diff(want, p.tree()); diff != "" {
		p.t.Errorf("files (-want +got):\n%s", diff)
	}
}

// serve serves files by their paths.
func serve(t *testing.T, files map[string][]byte) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(content)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

type entry struct {
	name, content string
	mode          int64
	kind          byte
}

func tarOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Typeflag: e.kind}
		switch e.kind {
		case 0, tar.TypeReg:
			h.Size = int64(len(e.content))
		case tar.TypeSymlink, tar.TypeLink:
			h.Linkname = e.content
		}
		must.OK(t, w.WriteHeader(h))
		if h.Size > 0 {
			must.Get(io.WriteString(w, e.content))(t)
		}
	}
	must.OK(t, w.Close())
	return b.Bytes()
}

// sparseTar returns an archive with one file, which has a size and no content.
func sparseTar(size int64) []byte {
	archive := make([]byte, 3*512)
	for at, field := range map[int]string{0: "sparse", 100: "0000644", 124: "00000000000", 156: "S", 257: "ustar  ",
		386: "00000000000", 398: "00000000000", 148: "        "} {
		copy(archive[at:], field)
	}
	binary.BigEndian.PutUint64(archive[487:], uint64(size))
	archive[483] = 0x80 // the size is in binary
	sum := 0
	for _, b := range archive[:512] {
		sum += int(b)
	}
	copy(archive[148:], fmt.Sprintf("%06o\x00", sum))
	return archive
}

func zipOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		mode := fs.FileMode(e.mode)
		if e.kind == tar.TypeSymlink {
			mode |= fs.ModeSymlink
		}
		h.SetMode(mode)
		f, err := w.CreateHeader(h)
		if err == nil {
			_, err = io.WriteString(f, e.content)
		}
		must.OK(t, err)
	}
	must.OK(t, w.Close())
	return b.Bytes()
}

// packed packs with a writer.
func packed(t *testing.T, content []byte, pack func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pack(&b)
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	must.OK(t, err)
	return b.Bytes()
}

func gz(t *testing.T, content []byte) []byte {
	return packed(t, content, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil })
}

func TestModesAndArchives(t *testing.T) {
	t.Parallel()
	tree := tarOf(t, entry{"d/", "", 0o755, tar.TypeDir}, entry{"d/run", "#!", 0o4755, 0}, entry{"./x", "x", 0o600, 0},
		entry{"d/up", "../x", 0o777, tar.TypeSymlink}, entry{"hard", "x", 0, tar.TypeLink}, entry{"/abs", "a", 0o444, 0},
		entry{"e/", "", 0o2050, tar.TypeDir})
	unpacked := map[string]string{"task/local/d/run": "-rwxr-xr-x #!", "task/local/x": "-rw------- x",
		"task/local/d/up": "-> ../x", "task/local/hard": "-rw------- x", "task/local/abs": "-r--r--r-- a",
		"task/local/e/": "drwxr-x---"}
	files := map[string][]byte{
		"/app": []byte("app"), "/t.tar": tree, "/t.tgz": gz(t, tree), "/t.tar.gz": gz(t, tree),
		"/single.gz": gz(t, []byte("s")),
		"/t.tar.xz":  packed(t, tree, func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) }),
		"/t.tar.zst": packed(t, tree, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }),
		"/t.zip": zipOf(t, entry{"d/run", "#!", 0o4755, 0}, entry{"x", "x", 0o600, 0},
			entry{"d/up", "../x", 0o777, tar.TypeSymlink}),
		"/one.zip": zipOf(t, entry{"inside", "1", 0o755, 0}), "/plain": tree,
	}
	url := serve(t, files)
	app := map[string]string{"task/local/app": "-rw-r--r-- app"}
	sum := sha256.Sum256(files["/app"])
	digits := hex.EncodeToString(sum[:])
	for name, c := range map[string]struct {
		a    fetch.Artifact
		want map[string]string
	}{
		"a file": {fetch.Artifact{Source: url + "/app"}, app},
		"its name": {fetch.Artifact{Source: url + "/app?filename=other"},
			map[string]string{"task/local/other": "-rw-r--r-- app"}},
		"mode file": {fetch.Artifact{Source: url + "/app", Mode: "file", Destination: "local/a/b"},
			map[string]string{"task/local/a/b": "-rw-r--r-- app"}},
		"its checksum": {fetch.Artifact{Source: url + "/app",
			Options: map[string]string{"checksum": "sha256:" + digits}}, app},
		"a checksum alone": {fetch.Artifact{Source: url + "/app", Options: map[string]string{"checksum": digits}}, app},
		"tar":              {fetch.Artifact{Source: url + "/t.tar"}, unpacked},
		"tgz":              {fetch.Artifact{Source: url + "/t.tgz"}, unpacked},
		"tar.gz":           {fetch.Artifact{Source: url + "/t.tar.gz"}, unpacked},
		"tar.xz":           {fetch.Artifact{Source: url + "/t.tar.xz"}, unpacked},
		"tar.zst":          {fetch.Artifact{Source: url + "/t.tar.zst", Mode: "dir"}, unpacked},
		"named by archive": {fetch.Artifact{Source: url + "/plain", Options: map[string]string{"archive": "tar"}}, unpacked},
		"not unpacked": {fetch.Artifact{Source: url + "/single.gz", Options: map[string]string{"archive": "false"}},
			map[string]string{"task/local/single.gz": fmt.Sprintf("-rw-r--r-- %.20s", files["/single.gz"])}},
		"gz": {fetch.Artifact{Source: url + "/single.gz"}, map[string]string{"task/local/single": "-rw-r--r-- s"}},
		"gz file": {fetch.Artifact{Source: url + "/single.gz", Mode: "file", Destination: "local/f"},
			map[string]string{"task/local/f": "-rw-r--r-- s"}},
		"zip file": {fetch.Artifact{Source: url + "/one.zip", Mode: "file", Destination: "local/f"},
			map[string]string{"task/local/f": "-rwxr-xr-x 1"}},
		"zip": {fetch.Artifact{Source: url + "/t.zip"}, map[string]string{"task/local/d/run": "-rwxr-xr-x #!",
			"task/local/x": "-rw------- x", "task/local/d/up": "-> ../x"}},
		"a part": {fetch.Artifact{Source: url + "/t.tar//d/r*", Mode: "file", Destination: "local/r"},
			map[string]string{"task/local/r": "-rwxr-xr-x #!"}},
		"shared": {fetch.Artifact{Source: url + "/app", Shared: true, Destination: "data"},
			map[string]string{"alloc/data/app": "-rw-r--r-- app", "task/local/": ""}},
		"the top one": {fetch.Artifact{Source: url + "/app", Destination: "."},
			map[string]string{"task/app": "-rw-r--r-- app", "task/local/": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.want(p.get(c.a), c.want)
		})
	}
}

// TestHostileArchives: an artifact that could reach anything beyond itself, or too much, is refused whole.
func TestHostileArchives(t *testing.T) {
	t.Parallel()
	link := func(name, target string) entry { return entry{name, target, 0o777, tar.TypeSymlink} }
	zeros := make([]byte, 70<<20)
	many := make([]entry, 101)
	for i := range many {
		many[i] = entry{fmt.Sprint(i), "", 0o644, 0}
	}
	files := map[string][]byte{}
	want := map[string]string{}
	add := func(name, words string, content []byte) {
		files["/"+name] = content
		want[name] = words
	}
	both := func(name, words string, entries ...entry) {
		add(name+".tar", words, tarOf(t, entries...))
		add(name+".zip", words, zipOf(t, entries...))
	}
	both("slip", "leads out of it", entry{"../evil", "x", 0o644, 0})
	both("deep-slip", "leads out of it", entry{"a/../../evil", "x", 0o644, 0})
	both("absolute-link", "leads out of the artifact", link("l", "/etc"))
	both("link-up", "leads out of the artifact", link("a/l", "../../x"))
	both("link-through-link", "leads out of the artifact", link("b", "."), link("a", "b/b/../../.."))
	both("write-through-link", "", link("l", "d"), entry{"d/x", "x", 0o644, 0}, entry{"l/y", "y", 0o644, 0})
	both("many", "more than 100 files", many...)
	both("many-directories", "more than 100 directories", entry{strings.Repeat("d/", 60) + "f", "", 0o644, 0},
		entry{"e/" + strings.Repeat("d/", 60) + "f", "", 0o644, 0})
	both("long-name", "longer than 4096 bytes", entry{strings.Repeat("d/", 2100) + "f", "", 0o644, 0})
	add("sparse.tar", "decompression_size_limit", sparseTar(1<<40))
	add("hard.tar", "is no file before it", tarOf(t, entry{"h", "/etc/passwd", 0, tar.TypeLink}))
	add("hard-up.tar", "is no file before it", tarOf(t, entry{"h", "../../../../../etc/passwd", 0, tar.TypeLink}))
	add("device.tar", "devices and pipes are not unpacked", tarOf(t, entry{"null", "", 0o666, tar.TypeChar}))
	add("pipe.tar", "devices and pipes are not unpacked", tarOf(t, entry{"p", "", 0o666, tar.TypeFifo}))
	add("bomb.gz", "times as large as the archive", gz(t, zeros))
	add("bomb.zip", "times as large as the archive", zipOf(t, entry{"z", string(zeros), 0o644, 0}))
	add("large.tar", "decompression_size_limit", tarOf(t, entry{"z", string(zeros[:3<<20]), 0o644, 0}))
	add("empty.tar", "it is empty", tarOf(t))
	add("cut.tar", "unexpected EOF", tarOf(t, entry{"z", strings.Repeat("z", 5000), 0o644, 0})[:1000])
	add("no.zip", "not a valid zip", []byte("PK no"))
	add("no.tar.xz", "unpack the tar.xz", []byte("no"))
	add("no.tar.zst", "unpack the tar.zst", []byte("no"))
	url := serve(t, files)
	for name, words := range want {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			if name == "large.tar" {
				p.req.Limits.Unpacked = 2 << 20
			}
			text := p.get(fetch.Artifact{Source: url + "/" + name})
			if words == "" { // the file takes the link's place, or comes before it: nothing is written through it
				words = "is a file and a directory"
			}
			p.wantWords(text, words)
			p.wantTree(map[string]string{"task/local/": ""})
		})
	}
}

// TestDestinations: nothing outside of the task's directory is written, whatever the task has put in the way.
func TestDestinations(t *testing.T) {
	t.Parallel()
	url := serve(t, map[string][]byte{"/app": []byte("new"), "/t.tar": tarOf(t, entry{"d/f", "f", 0o644, 0})})
	for name, c := range map[string]struct {
		plant func(task string) error
		a     fetch.Artifact
		words string
		want  map[string]string
	}{
		"a link out": {func(task string) error { return os.Symlink("../..", task+"/local/l") },
			fetch.Artifact{Source: url + "/app", Destination: "local/l"}, "the destination", map[string]string{
				"task/local/l": "-> ../.."}},
		"an absolute link": {func(task string) error { return os.Symlink("/tmp", task+"/local/l") },
			fetch.Artifact{Source: url + "/app", Destination: "local/l/x"}, "the destination",
			map[string]string{"task/local/l": "-> /tmp"}},
		"a link within": {func(task string) error { return os.Symlink(".", task+"/local/l") },
			fetch.Artifact{Source: url + "/app", Destination: "local/l"}, "",
			map[string]string{"task/local/l": "-> .", "task/local/app": "-rw-r--r-- new"}},
		"a link in the file's place": {func(task string) error { return os.Symlink("../../victim", task+"/local/app") },
			fetch.Artifact{Source: url + "/app"}, "", map[string]string{"task/local/app": "-rw-r--r-- new"}},
		"a link in a directory's place": {func(task string) error { return os.Symlink("../..", task+"/local/d") },
			fetch.Artifact{Source: url + "/t.tar"}, "in the way", map[string]string{"task/local/d": "-> ../.."}},
		"a directory in the file's place": {func(task string) error { return os.Mkdir(task+"/local/app", 0o755) },
			fetch.Artifact{Source: url + "/app"}, "in the way", map[string]string{"task/local/app/": ""}},
		"a pipe in the file's place": {func(task string) error { return syscall.Mkfifo(task+"/local/p", 0o644) },
			fetch.Artifact{Source: url + "/app?filename=p"}, "in the way", nil},
		"files that are there": {func(task string) error {
			return errors.Join(os.Mkdir(task+"/local/d", 0o755), os.WriteFile(task+"/local/d/f", []byte("old"), 0o600),
				os.WriteFile(task+"/local/d/g", []byte("g"), 0o600))
		}, fetch.Artifact{Source: url + "/t.tar"}, "",
			map[string]string{"task/local/d/f": "-rw-r--r-- f", "task/local/d/g": "-rw------- g"}},
		"mode file without a name": {func(string) error { return nil },
			fetch.Artifact{Source: url + "/app", Destination: ".", Mode: "file"}, "names the file",
			map[string]string{"task/local/": ""}},
		"mode dir for a file": {func(string) error { return nil }, fetch.Artifact{Source: url + "/app", Mode: "dir"},
			"needs an archive", map[string]string{"task/local/": ""}},
		"mode file for files": {func(string) error { return nil }, fetch.Artifact{Source: url + "/t.tar", Mode: "file",
			Destination: "local/x"}, "a single file", map[string]string{"task/local/": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			must.OK(t, c.plant(p.req.Dirs.Task))
			p.wantWords(p.get(c.a), c.words)
			if c.want != nil {
				p.wantTree(c.want)
			}
		})
	}
}

// TestHostileServers: what a server says leads to an error, and never to another protocol or to the machine's
// credentials.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	const secret = "the-secret"
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Token") != "" || strings.Contains(fmt.Sprint(r.Header), "signature") {
			http.Error(w, "it got the header", http.StatusTeapot)
		}
		if r.URL.Path == "/SUMS" {
			fmt.Fprintf(w, "%x  app\n", sha256.Sum256([]byte("app")))
		}
	}))
	t.Cleanup(other.Close)
	mux := http.NewServeMux()
	redirect := func(path, to string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		})
	}
	redirect("/to-file", "file:///etc/passwd")
	redirect("/to-unix", "unix:///run/docker.sock")
	redirect("/loop", "/loop")
	redirect("/metadata", "http://169.254.169.254/latest/meta-data/")
	redirect("/metadata6", "http://[fd00:ec2::254]/latest/")
	redirect("/mapped", "http://[::ffff:169.254.169.254]/")
	redirect("/other", other.URL+"/")
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "short")
	})
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "999999999999")
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 64<<10))
		}
	})
	mux.HandleFunc("/never", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/denied", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no", http.StatusForbidden)
	})
	mux.HandleFunc("/app", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "app") })
	mux.HandleFunc("/SUMS", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%x  other\n%x *./app\n", sha256.Sum256(nil), sha256.Sum256([]byte("app")))
	})
	mux.HandleFunc("/WRONG", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "SHA256 (app) = %x\n", sha256.Sum256(nil))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	secure := httptest.NewTLSServer(mux)
	t.Cleanup(secure.Close)
	mux.HandleFunc("/down", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, server.URL+"/app", http.StatusFound)
	})
	for name, c := range map[string]struct {
		a     fetch.Artifact
		words string
	}{
		"/to-file": {words: `redirects to "file"`}, "/to-unix": {words: `redirects to "unix"`},
		"/loop": {words: "more than 10 times"}, "/metadata": {words: "link-local"}, "/metadata6": {words: "link-local"},
		"/mapped": {words: "link-local"}, "/short": {words: "the connection ended before"},
		"/huge": {words: "artifact.http_max_size"}, "/endless": {words: "artifact.http_max_size"},
		"/never": {words: "artifact.http_read_timeout"}, "/denied": {words: "403 Forbidden"}, "/missing": {words: "404"},
		"/other":        {a: fetch.Artifact{Options: map[string]string{"filename": "x"}}},
		"/other#signed": {a: fetch.Artifact{Options: map[string]string{"filename": "x", "sig": "signature"}}},
		"/app":          {},
		"/app#wrong": {a: fetch.Artifact{Options: map[string]string{"checksum": "md5:" + strings.Repeat("0", 32)}},
			words: "the checksum differs"},
		"/app#sums":           {a: fetch.Artifact{Options: map[string]string{"checksum": "file:" + server.URL + "/SUMS"}}},
		"/app#sums-elsewhere": {a: fetch.Artifact{Options: map[string]string{"checksum": "file:" + other.URL + "/SUMS"}}},
		"/app#listed": {a: fetch.Artifact{Options: map[string]string{"checksum": "file:" + server.URL + "/WRONG"}},
			words: "differs"},
		"/app#file": {a: fetch.Artifact{Options: map[string]string{"checksum": "file:/etc/passwd"}},
			words: "it needs a URL"},
		"/app#untrusted": {a: fetch.Artifact{Source: secure.URL + "/app"}, words: "certificate"},
		"/app#insecure":  {a: fetch.Artifact{Source: secure.URL + "/app", Insecure: true}},
		"/down":          {a: fetch.Artifact{Source: secure.URL + "/down", Insecure: true}, words: "from https to http"},
	} {
		t.Run(strings.TrimPrefix(name, "/"), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.req.Limits.Download = 1 << 20
			if name == "/never" {
				p.req.Limits.HTTPTimeout = 50 * time.Millisecond
			}
			path, _, _ := strings.Cut(name, "#")
			if c.a.Source == "" {
				c.a.Source = strings.Replace(server.URL, "://", "://user:"+secret+"@", 1) + path
			}
			c.a.Headers = map[string]string{"X-Token": secret}
			text := p.get(c.a)
			p.wantWords(text, c.words)
			if strings.Contains(text, secret) {
				t.Errorf("the error has the secret: %s", text)
			}
		})
	}
}

// git runs git in a directory.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=n", "-c", "user.email=e"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func needGit(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
}

// repositories serves those in a directory.
func repositories(t *testing.T, top string) http.Handler {
	t.Helper()
	backend := filepath.Join(git(t, top, "--exec-path"), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		t.Skip("git has no http-backend here")
	}
	return &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + top, "GIT_HTTP_EXPORT_ALL=1",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
}

func TestRepositories(t *testing.T) {
	t.Parallel()
	needGit(t)
	top := t.TempDir()
	repo := filepath.Join(top, "repo")
	git(t, top, "init", "-q", "-b", "main", repo)
	commit := func(content string) string {
		must.OK(t, os.WriteFile(repo+"/f", []byte(content), 0o644))
		git(t, repo, "add", "-A")
		git(t, repo, "commit", "-q", "-m", content)
		return git(t, repo, "rev-parse", "HEAD")
	}
	first := commit("one")
	git(t, repo, "tag", "v1")
	git(t, repo, "checkout", "-q", "-b", "side")
	commit("side")
	git(t, repo, "checkout", "-q", "main")
	must.OK(t, errors.Join(os.Mkdir(repo+"/sub", 0o755), os.WriteFile(repo+"/sub/s", []byte("s"), 0o755)))
	commit("two")
	git(t, repo, "checkout", "-q", "-b", "evil")
	must.OK(t, os.Symlink("/etc/passwd", repo+"/l"))
	commit("evil")
	git(t, repo, "checkout", "-q", "main")
	git(t, repo, "checkout", "-q", "-b", "link")
	must.OK(t, errors.Join(os.Symlink("../../..", repo+"/out"), os.Symlink("sub", repo+"/in")))
	commit("link")
	git(t, repo, "checkout", "-q", "main")
	source := "git::file://" + repo
	for name, c := range map[string]struct {
		a     fetch.Artifact
		file  string
		words string
	}{
		"main":         {a: fetch.Artifact{Source: source}, file: "two"},
		"a tag":        {a: fetch.Artifact{Source: source + "?ref=v1"}, file: "one"},
		"a branch":     {a: fetch.Artifact{Source: source, Options: map[string]string{"ref": "side"}}, file: "side"},
		"a commit":     {a: fetch.Artifact{Source: source + "?ref=" + first}, file: "one"},
		"shallow":      {a: fetch.Artifact{Source: source + "?depth=1"}, file: "two"},
		"shallow tag":  {a: fetch.Artifact{Source: source + "?depth=1&ref=v1"}, file: "one"},
		"evil":         {a: fetch.Artifact{Source: source + "?ref=evil"}, words: "leads out of the artifact"},
		"no such":      {a: fetch.Artifact{Source: source + "?ref=none"}, words: "none"},
		"an option":    {a: fetch.Artifact{Source: source + "?ref=--orphan=x"}, words: "hyphen"},
		"another path": {a: fetch.Artifact{Source: "git::file:///nonexistent/x"}, words: "no such file"},
		"a password":   {a: fetch.Artifact{Source: "git::http://u:secret-word@127.0.0.1:1/x"}, words: "git: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.req.FileDirs = []string{top}
			c.a.Destination = "local/r"
			text := p.get(c.a)
			if p.wantWords(text, c.words); strings.Contains(text, "secret-word") {
				t.Errorf("the error has the password: %s", text)
			}
			content, _ := os.ReadFile(p.req.Dirs.Task + "/local/r/f")
			if string(content) != c.file {
				t.Errorf("the file has %q, want %q", content, c.file)
			}
		})
	}
	t.Run("a part", func(t *testing.T) {
		t.Parallel()
		p := newPlace(t)
		p.req.FileDirs = []string{top}
		p.want(p.get(fetch.Artifact{Source: source + "//sub"}), map[string]string{"task/local/s": "-rwxr-xr-x s"})
	})
	t.Run("a part behind a link", func(t *testing.T) {
		t.Parallel()
		p := newPlace(t)
		p.req.FileDirs = []string{top}
		must.OK(t, os.WriteFile(p.req.Dirs.Task+"/own", []byte("own"), 0o644))
		p.wantWords(p.get(fetch.Artifact{Source: source + "//out/own?ref=link"}), "leads out")
		p.want(p.get(fetch.Artifact{Source: source + "//in/s?ref=link"}),
			map[string]string{"task/own": "-rw-r--r-- own", "task/local/s": "-rwxr-xr-x s"})
	})
	t.Run("not allowed", func(t *testing.T) {
		t.Parallel()
		p := newPlace(t)
		p.wantWords(p.get(fetch.Artifact{Source: source}), "artifact.file_dirs")
	})
}

// TestRepositoryWithAPassword clones over HTTP, with a submodule of the same server: git gets the password, and no
// argument has it.
func TestRepositoryWithAPassword(t *testing.T) {
	t.Parallel()
	needGit(t)
	top := t.TempDir()
	const password = "secret-word"
	files := repositories(t, top)
	var inArguments atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all, _ := proc.PIDs()
		for _, pid := range all {
			if strings.Contains(proc.Args(pid), password) {
				inArguments.Store(true)
			}
		}
		if _, given, _ := r.BasicAuth(); given != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="repositories"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	for _, name := range []string{"part", "whole"} {
		git(t, top, "init", "-q", name)
		must.OK(t, os.WriteFile(filepath.Join(top, name, "f"), []byte(name), 0o644))
		if name == "whole" {
			git(t, top+"/whole", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", top+"/part", "sub")
			git(t, top+"/whole", "config", "-f", ".gitmodules", "submodule.sub.url", server.URL+"/part/.git")
		}
		git(t, filepath.Join(top, name), "add", "-A")
		git(t, filepath.Join(top, name), "commit", "-q", "-m", "m")
	}
	p := newPlace(t)
	source := "git::" + strings.Replace(server.URL, "://", "://user:"+password+"@", 1) + "/whole/.git"
	if text := p.get(fetch.Artifact{Source: source}); text != "" {
		t.Fatal(text)
	}
	for file, want := range map[string]string{"f": "whole", "sub/f": "part"} {
		if got, err := os.ReadFile(p.req.Dirs.Task + "/local/" + file); string(got) != want || err != nil {
			t.Errorf("%s is %q, %v", file, got, err)
		}
	}
	if config, _ := os.ReadFile(p.req.Dirs.Task + "/local/.git/config"); strings.Contains(string(config), password) ||
		inArguments.Load() {
		t.Errorf("the password is to be read; the repository's configuration is\n%s", config)
	}
}

// TestHgWithAPassword: hg gets a password by its configuration, and no argument has it. A program of hg's name shows
// what it gets.
func TestHgWithAPassword(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	bin := t.TempDir()
	const script = `#!/bin/sh
for last; do :; done
mkdir -p "$last"
echo "$@" > "$last/arguments"
cp "$HOME/.hgrc" "$last/config"
`
	must.Program(t, bin+"/hg", []byte(script))
	p.process.Env = []string{"PATH=" + bin + ":/usr/bin:/bin"}
	p.process.Read = []string{bin}
	if text := p.get(fetch.Artifact{Source: "hg::https://user:secret-word@example.com/x"}); text != "" {
		t.Fatal(text)
	}
	for file, want := range map[string]string{"arguments": "https://example.com/x ",
		"config": "source.prefix = https://example.com\nsource.username = user\nsource.password = secret-word\n"} {
		got, err := os.ReadFile(p.req.Dirs.Task + "/local/" + file)
		if err != nil || !strings.Contains(string(got), want) ||
			file == "arguments" && strings.Contains(string(got), "secret") {
			t.Errorf("%s: %s, %v", file, got, err)
		}
	}
	words := p.get(fetch.Artifact{Source: "hg::https://user:a%0ahooks@example.com/x"})
	if !strings.Contains(words, "line break") {
		t.Errorf("a line break in a password: %q", words)
	}
}

// TestALockOfAnotherUser: everybody who can read the task's directory can lock it, and does not delay what is fetched.
func TestALockOfAnotherUser(t *testing.T) {
	t.Parallel()
	url := serve(t, map[string][]byte{"/app": []byte("app")})
	p := newPlace(t)
	dir := must.Get(os.Open(p.req.Dirs.Task))(t)
	defer dir.Close()
	err := errors.Join(syscall.Flock(int(dir.Fd()), syscall.LOCK_EX), os.Mkdir(p.req.Dirs.Task+"/private", 0o700))
	must.OK(t, err)
	p.in = "private"
	p.want(p.get(fetch.Artifact{Source: url + "/app"}), map[string]string{"task/local/app": "-rw-r--r-- app",
		"task/private/": "drwx------"})
}

// TestServersOfRepositories: a repository on a server gets no files of this machine as its submodules. Another server,
// to which one redirects, gets no password, and none leads from https to http.
func TestServersOfRepositories(t *testing.T) {
	t.Parallel()
	needGit(t)
	top := t.TempDir()
	files := repositories(t, top)
	var got atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			got.Store(true)
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, server.URL+r.URL.String(), http.StatusFound)
	}))
	t.Cleanup(first.Close)
	for _, name := range []string{"local", "plain", "whole"} {
		repo := filepath.Join(top, name)
		git(t, top, "init", "-q", name)
		must.OK(t, os.WriteFile(repo+"/f", []byte(name), 0o644))
		if name == "whole" {
			git(t, repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "file://"+top+"/local", "sub")
		}
		git(t, repo, "add", "-A")
		git(t, repo, "commit", "-q", "-m", "m")
	}
	p := newPlace(t)
	p.req.FileDirs = []string{top}
	text := p.get(fetch.Artifact{Source: "git::" + server.URL + "/whole/.git"})
	if !strings.Contains(text, "not allowed") {
		t.Errorf("with a submodule that is a file of this machine: %q", text)
	}
	source := "git::" + strings.Replace(first.URL, "://", "://user:secret-word@", 1) + "/plain/.git"
	if text := p.get(fetch.Artifact{Source: source}); text != "" || got.Load() {
		t.Errorf("after a redirection: %q; it got the password: %v", text, got.Load())
	}
	secure := httptest.NewTLSServer(first.Config.Handler)
	t.Cleanup(secure.Close)
	authority := filepath.Join(top, "authority.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}
	must.OK(t, os.WriteFile(authority, pem.EncodeToMemory(block), 0o644))
	p = newPlace(t)
	p.process.Env, p.process.Read = append(p.process.Env, "GIT_SSL_CAINFO="+authority), []string{authority}
	text = p.get(fetch.Artifact{Source: "git::" + secure.URL + "/plain/.git"})
	if !strings.Contains(text, "git: ") || strings.Contains(text, "certificate") {
		t.Errorf("from https to http: %q", text)
	}
}

// TestLinkLocalRepositories: what git, hg and ssh connect to is no link-local address, whether the source names it in
// one form or another, a server redirects to it, or a repository has it as a submodule. Other addresses are reached.
func TestLinkLocalRepositories(t *testing.T) {
	t.Parallel()
	needGit(t)
	const metadata = "http://169.254.169.254/x"
	top := t.TempDir()
	repo := filepath.Join(top, "r")
	git(t, top, "init", "-q", repo)
	git(t, repo, "commit", "-q", "--allow-empty", "-m", "m")
	commit := git(t, repo, "rev-parse", "HEAD")
	must.OK(t, os.WriteFile(repo+"/.gitmodules", []byte("[submodule \"s\"]\n path = s\n url = "+metadata+"\n"), 0o644))
	git(t, repo, "add", ".gitmodules")
	git(t, repo, "update-index", "--add", "--cacheinfo", "160000,"+strings.TrimSpace(commit)+",s")
	git(t, repo, "commit", "-q", "-m", "m")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, metadata+strings.TrimPrefix(r.URL.String(), "/x"), http.StatusFound)
	}))
	t.Cleanup(server.Close)
	bin := t.TempDir() // hg is seldom installed; whatever it would run is kept from the address as well
	must.Program(t, bin+"/hg", []byte("#!/bin/sh\ngit ls-remote "+metadata+"\n"))
	const linkLocal = "link-local address"
	for name, c := range map[string]struct{ source, words string }{
		"http":           {"git::" + metadata, linkLocal},
		"a number":       {"git::http://2852039166/x", linkLocal},
		"IPv6":           {"git::http://[fe80::1%25lo]/x", linkLocal},
		"mapped":         {"git::http://[::ffff:169.254.169.254]/x", linkLocal},
		"another":        {"git::http://[fd00:ec2::254]/x", linkLocal},
		"https":          {"git::https://169.254.169.254/x", linkLocal},
		"port of names":  {"git::http://169.254.1.2:53/x", linkLocal},
		"git":            {"git::git://169.254.169.254/x", linkLocal},
		"ssh":            {"git::ssh://git@169.254.169.254/x", linkLocal},
		"redirection":    {"git::" + server.URL + "/x", linkLocal},
		"submodule":      {"git::file://" + repo, linkLocal},
		"hg":             {"hg::http://127.0.0.1/x", linkLocal},
		"another server": {"git::http://127.0.0.1:1/x", "unable to access"},
		"another ssh":    {"git::ssh://git@127.0.0.1:1/x", "onnection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(c.source, "ssh") {
				if _, err := exec.LookPath("ssh"); err != nil {
					t.Skip("ssh is not installed")
				}
			}
			p := newPlace(t)
			p.req.FileDirs = []string{top}
			p.process.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
			p.process.Read = []string{bin}
			p.wantWords(p.get(fetch.Artifact{Source: c.source}), c.words)
		})
	}
}

func TestFilesOfThisMachine(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.WriteFile(dir+"/f", []byte("f"), 0o755), os.WriteFile(outside+"/o", []byte("o"), 0o644),
		os.Mkdir(dir+"/d", 0o755), os.WriteFile(dir+"/d/g", []byte("g"), 0o644), os.Symlink(outside+"/o", dir+"/out"),
		os.Symlink("g", dir+"/d/l"), os.Mkdir(dir+"/bad", 0o755), os.Symlink(outside, dir+"/bad/out"),
		syscall.Mkfifo(dir+"/pipe", 0o644),
	} {
		must.OK(t, err)
	}
	for source, c := range map[string]struct {
		words string
		want  map[string]string
	}{
		"file://" + dir + "/f": {want: map[string]string{"task/local/f": "-rwxr-xr-x f"}},
		dir + "/d":             {want: map[string]string{"task/local/g": "-rw-r--r-- g", "task/local/l": "-> g"}},
		dir + "/out":           {words: "none of the directories"},
		dir + "/bad":           {words: "leads out of the artifact"},
		dir + "/../etc/passwd": {words: "no such file"},
		"/etc/passwd":          {words: "none of the directories"},
		dir + "/pipe":          {words: "neither a file nor a directory"},
	} {
		t.Run(filepath.Base(source), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.req.FileDirs = []string{dir}
			p.wantWords(p.get(fetch.Artifact{Source: source}), c.words)
			if c.want == nil {
				c.want = map[string]string{"task/local/": ""}
			}
			p.wantTree(c.want)
		})
	}
}

// TestManyAtOnce: the artifacts of a task do not disturb one another, and those that fail don't end the others.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	url := serve(t, map[string][]byte{"/app": []byte("app")})
	p := newPlace(t)
	want := map[string]string{}
	for i := range 20 {
		source := url + "/app"
		if i%5 == 0 {
			source = url + "/none"
		} else {
			want[fmt.Sprintf("task/local/%d/app", i)] = "-rw-r--r-- app"
		}
		p.req.Artifacts = append(p.req.Artifacts, fetch.Artifact{Source: source, Destination: fmt.Sprintf("local/%d", i)})
	}
	p.req.Stage = fetch.StagePrefix + "x"
	got := map[bool]int{}
	err := fetch.Run(t.Context(), p.process, p.req, func(r fetch.Report) {
		if r.Done || r.Error != "" {
			got[r.Done]++
		}
	})
	if err != nil || !maps.Equal(got, map[bool]int{true: 16, false: 4}) {
		t.Errorf("%v, %v", got, err)
	}
	p.want("", want)
}

// TestConfined: what the process executes has none of root's rights and none of our environment, is the task's user,
// can read only the system's files, and writes only where the task may.
func TestConfined(t *testing.T) {
	t.Parallel()
	outside := must.ShortDir(t) // the path of a TempDir is closed to other users
	p := newPlace(t)
	script := fmt.Sprintf(`#!/bin/sh
grep -E '^(Uid|CapEff|CapPrm|NoNewPrivs):' /proc/self/status
echo "environment: $SECRET $GIVEN"
cat %[1]s/secret 2>/dev/null
echo x 2>/dev/null >%[1]s/written && echo it wrote
mkdir -p "$TMPDIR/made" && echo made
ulimit -c
exit 1
`, outside)
	bin := filepath.Join(filepath.Dir(p.req.Dirs.Task), "bin")
	for _, err := range []error{
		os.Mkdir(bin, 0o755), os.Chmod(outside, 0o777),
		os.WriteFile(outside+"/secret", []byte("the-secret"), 0o644),
	} {
		must.OK(t, err)
	}
	must.Program(t, bin+"/git", []byte(script))
	p.process.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "GIVEN=given"}
	p.process.Read = []string{bin}
	uid := os.Getuid()
	if uid == 0 {
		uid = 54321
		p.process.User = &syscall.Credential{Uid: 54321, Gid: 54321}
		for _, dir := range []string{p.req.Dirs.Task, p.req.Dirs.Task + "/local", p.req.Dirs.Shared} {
			must.OK(t, os.Chown(dir, uid, uid))
		}
	}
	t.Run("the task's user", func(t *testing.T) { p.checkConfined(t, uid) })
	if os.Getuid() != 0 {
		return
	}
	p.process.User = nil
	for _, dir := range []string{p.req.Dirs.Task, p.req.Dirs.Task + "/local", p.req.Dirs.Shared} {
		must.OK(t, os.Chown(dir, 0, 0))
	}
	t.Run("root", func(t *testing.T) { p.checkConfined(t, 0) })
}

func (p *place) checkConfined(t *testing.T, uid int) {
	t.Helper()
	text := p.get(fetch.Artifact{Source: "git::http://127.0.0.1:1/x"})
	fields := strings.Join(strings.Fields(text), " ")
	for _, want := range []string{
		fmt.Sprintf("Uid: %d %[1]d %[1]d %[1]d", uid), "CapPrm: 0000000000000000",
		"CapEff: 0000000000000000", "NoNewPrivs: 1", "environment: given",
		"made; 0",
	} {
		if !strings.Contains(fields, want) {
			t.Errorf("no %q in %s", want, fields)
		}
	}
	if fetch.LandlockVersion() > 0 && (strings.Contains(fields, "the-secret") || strings.Contains(fields, "it wrote")) {
		t.Errorf("it got out: %s", fields)
	}
}

// serveForEver answers one request without an end. It tells when that was asked, and when the client is gone.
func serveForEver(t *testing.T) (url string, asked, gone chan struct{}) {
	t.Helper()
	asked, gone = make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		close(asked)
		<-r.Context().Done()
		close(gone)
	}))
	t.Cleanup(server.Close)
	return server.URL, asked, gone
}

// TestTheEndOfItsParentEndsIt kills the process that has started the fetching one.
func TestTheEndOfItsParentEndsIt(t *testing.T) {
	t.Parallel()
	url, asked, gone := serveForEver(t)
	if dir := os.Getenv("ARTIFACTS_TEST_PARENT"); dir != "" {
		p := newPlace(t)
		p.get(fetch.Artifact{Source: dir})
		return
	}
	parent := exec.Command(os.Args[0], "-test.run=^TestTheEndOfItsParentEndsIt$")
	parent.Env = append(os.Environ(), "ARTIFACTS_TEST_PARENT="+url+"/x", "TMPDIR="+t.TempDir())
	must.OK(t, parent.Start())
	await(t, asked)
	must.OK(t, parent.Process.Kill())
	_ = parent.Wait()
	await(t, gone)
}

// TestCancelled ends all processes, and leaves nothing behind.
func TestCancelled(t *testing.T) {
	t.Parallel()
	url, asked, gone := serveForEver(t)
	p := newPlace(t)
	p.req.Stage = fetch.StagePrefix + "x"
	p.req.Artifacts = []fetch.Artifact{{Source: url, Destination: "local"}}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	same.Error(t, context.Canceled, fetch.Run(ctx, p.process, p.req, func(fetch.Report) {}))
	await(t, gone)
	p.want("", map[string]string{"task/local/": ""})
}

func await(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(deadline):
		t.Fatal("it does not end")
	}
}
