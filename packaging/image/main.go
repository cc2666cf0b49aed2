// Command image writes a container image as an archive, without a daemon: taskapi, the certificates of Mozilla's
// authorities, and what a program expects of a machine. `docker load` and `podman load` read the archive, and so does
// every tool for OCI image layouts. The same arguments give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

type options struct {
	binary, arch, version, revision, out string
	created                              time.Time
}

func main() {
	var o options
	var epoch int64
	flag.StringVar(&o.binary, "binary", "", "taskapi")
	flag.StringVar(&o.arch, "arch", "", "its architecture, as Go names it")
	flag.StringVar(&o.version, "version", "", "its version")
	flag.StringVar(&o.revision, "revision", "", "the commit that it was built from")
	flag.Int64Var(&epoch, "created", 0, "time of all files, in seconds since 1970")
	flag.StringVar(&o.out, "out", "", "the archive")
	flag.Parse()
	o.created = time.Unix(epoch, 0).UTC()
	if err := o.write(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write writes the archive.
func (o options) write() error {
	image, err := o.image()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	tag := "taskapi:" + o.version
	platform := v1.Platform{OS: "linux", Architecture: o.arch}
	annotations := map[string]string{
		"org.opencontainers.image.ref.name": o.version,
		"io.containerd.image.name":          "docker.io/library/" + tag,
		"org.opencontainers.image.revision": o.revision,
	}
	if err := path.AppendImage(image, layout.WithPlatform(platform), layout.WithAnnotations(annotations)); err != nil {
		return err
	}
	if err := dockerManifest(image, tag, filepath.Join(dir, "manifest.json")); err != nil {
		return err
	}
	return o.archive(dir)
}

// image returns the image.
func (o options) image() (v1.Image, error) {
	files, err := o.layer()
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	},
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{
		Layer: layer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "packaging/image"},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created, config.OS, config.Architecture = v1.Time{Time: o.created}, "linux", o.arch
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/taskapi"},
		Cmd:        []string{"run", "/etc/taskapi/job.nomad.hcl"},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Volumes:    map[string]struct{}{"/var/lib/taskapi": {}},
		StopSignal: "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "taskapi",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.revision": o.revision,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// layer returns the files of the image as an archive.
func (o options) layer() ([]byte, error) {
	binary, err := os.ReadFile(o.binary)
	if err != nil {
		return nil, err
	}
	var authorities bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a program that reads the file would trust it without the constraint
		}
		if err := pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		name string
		mode int64
		data []byte // nil for a directory
	}{
		{"etc/", 0o755, nil},
		{"etc/group", 0o644, []byte("root:x:0:\nnobody:x:65534:\n")},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n")},
		{"etc/ssl/", 0o755, nil},
		{"etc/ssl/certs/", 0o755, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, authorities.Bytes()},
		{"etc/taskapi/", 0o755, nil},
		{"etc/taskapi/taskapi.hcl", 0o644, []byte("isolate_users = true\n")},
		{"run/", 0o755, nil},
		{"tmp/", 0o1777, nil},
		{"usr/", 0o755, nil},
		{"usr/bin/", 0o755, nil},
		{"usr/bin/taskapi", 0o755, binary},
		{"var/", 0o755, nil},
		{"var/lib/", 0o755, nil},
		{"var/lib/taskapi/", 0o711, nil},
	} {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: o.created, Typeflag: tar.TypeReg}
		if f.data == nil {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// dockerManifest writes what makes an OCI layout an archive that older versions of Docker load.
func dockerManifest(image v1.Image, tag, file string) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	config, err := image.ConfigName()
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	blob := func(hash v1.Hash) string { return "blobs/" + hash.Algorithm + "/" + hash.Hex }
	entry := tarball.Descriptor{Config: blob(config), RepoTags: []string{ref.String()}}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		entry.Layers = append(entry.Layers, blob(digest))
	}
	data, err := json.Marshal(tarball.Manifest{entry})
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// archive writes the files of a directory, in the order of their names.
func (o options) archive(dir string) (err error) {
	out, err := os.Create(o.out)
	if err != nil {
		return err
	}
	defer func() {
		if closed := out.Close(); err == nil {
			err = closed
		}
	}()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: inside, Mode: 0o644, Size: int64(len(data)), ModTime: o.created, Typeflag: tar.TypeReg}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
