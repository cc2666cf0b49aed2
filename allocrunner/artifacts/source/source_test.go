package source

import (
	"fmt"
	"strings"
	"testing"

	"taskapi/internal/same"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"https://h/a.tgz":                        "http https://h/a.tgz  ",
		"https://u:p@h/a?x=y&archive=zip":        "http https://u:p@h/a?x=y zip ",
		"http://h/a//b/*.txt?archive=0":          "http http://h/a - b/*.txt",
		"git::https://h/r.git//sub?ref=v1&x=y":   "git https://h/r.git?x=y  sub ref=v1",
		"git::https://h/r?depth=3":               "git https://h/r   depth=3",
		"git://h/r":                              "git git://h/r  ",
		"ssh://git@h:2222/r":                     "git ssh://git@h:2222/r  ",
		"git@h.org:o/r.git":                      "git ssh://git@h.org/o/r.git  ",
		"git::git@h.org:/o/r.git//s?ref=a/b":     "git ssh://git@h.org/o/r.git  s ref=a/b",
		"github.com/o/r":                         "git https://github.com/o/r.git  ",
		"github.com/o/r/a/b?ref=x":               "git https://github.com/o/r.git  a/b ref=x",
		"gitlab.com/o/r.git//c":                  "git https://gitlab.com/o/r.git  c",
		"hg::https://h/r?rev=5":                  "hg https://h/r   ref=5",
		"/etc/x":                                 "file file:///etc/x  ",
		"file:///etc/x//y":                       "file file:///etc/x  y",
		"git::file:///r":                         "git file:///r  ",
		"https://h/a?checksum=" + sum:            "http https://h/a  ",
		"https://h/a?checksum=file:https://h/S":  "http https://h/a  ",
		"https://h/a b":                          "http https://h/a%20b  ",
		" https://h/a ":                          "http https://h/a  ",
		"http://[::1]:80/a":                      "http http://[::1]:80/a  ",
		"":                                       "error: source must be specified",
		"s3::https://s3.amazonaws.com/b/k":       "error: s3 is not here",
		"gcs::https://x/y":                       "error: gcs is not here",
		"smb://h/x":                              `error: sources of the kind "smb"`,
		"ftp://h/x":                              `error: sources of the kind "ftp"`,
		"h/x":                                    "error: the source has no scheme",
		"./x":                                    "error: the source has no scheme",
		"git::--upload-pack=x":                   "error: the source has no scheme",
		"git::ext::sh":                           "error: the source has no scheme",
		"git::ext://h/x":                         `error: git:: can't fetch "ext"`,
		"hg::git://h/x":                          `error: hg:: can't fetch "git"`,
		"ssh://-oProxyCommand=x/y":               "error: the source has no host",
		"ssh://-oProxyCommand=x@h/y":             "error: the user in the source",
		"-x@h:y":                                 "error: the user in the source",
		"https:///x":                             "error: the source has no host",
		"file://h/x":                             "error: a source on this machine needs an absolute path",
		"git::https://h/r?ref=-x":                "error: ref and rev",
		"git::https://h/r?depth=x":               "error: the option depth",
		"git::https://h/r?depth=-1":              "error: the option depth",
		"git::https://h/r?sshkey=-":              "error: the option sshkey",
		"git::https://h/r?checksum=" + sum:       "error: a repository has no checksum",
		"hg::https://h/r?rev=--config=x":         "error: ref and rev",
		"https://h/a//../b":                      "error: the part after //",
		"https://h/a?filename=../b":              "error: the option filename",
		"https://h/a?filename=..":                "error: the option filename",
		"https://h/a?checksum=crc:00":            "error: the checksum must begin with",
		"https://h/a?checksum=md5:00":            "error: a checksum of the type md5 has 32",
		"https://h/a?checksum=zz":                "error: the checksum must be written in hexadecimal",
		"https://h/\na":                          "error: the source has a control character",
		"https://h/a?%zz":                        "error: what follows the ?",
		"http://[::1":                            "error: the source is no URL",
		"git::git::https://h/x":                  "error: ",
		"bitbucket.org/o":                        "error: a repository is missing",
		"git::https://h/r//" + "%2e%2e":          "git https://h/r  %2e%2e",
		"git::ssh://h/r?sshkey=a2V5":             "git ssh://h/r   key",
		"https://h/a?filename=x&sshkey=a2V5&x=1": "http https://h/a?sshkey=a2V5&x=1  ",
	} {
		var got string
		if s, err := Parse(text, nil); err != nil {
			got = "error: " + err.Error()
		} else {
			got = fmt.Sprintf("%s %s %s %s", s.Kind, s.URL, s.Archive, s.Sub)
			if s.Ref != "" {
				got += " ref=" + s.Ref
			}
			if s.Depth != 0 {
				got += fmt.Sprintf(" depth=%d", s.Depth)
			}
			if len(s.SSHKey) > 0 {
				got += " " + string(s.SSHKey)
			}
		}
		if got != want && (!strings.HasPrefix(want, "error: ") || !strings.HasPrefix(got, want)) {
			t.Errorf("%q is\n%q, want\n%q", text, got, want)
		}
	}
}

const sum = "sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"

// TestOptions: an option of the job counts more than one in the URL.
func TestOptions(t *testing.T) {
	s, err := Parse("git::https://h/r?ref=a&x=1", map[string]string{"ref": "b", "x": "2"})
	if err != nil || s.Ref != "b" || s.URL.String() != "https://h/r?x=2" {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestShown: no password and no option is shown, whether the source is valid or not.
func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		"https://u:secret@h/a//b?token=secret":  "https://h/a//b",
		"git::https://u:secret@h/a?ref=secret":  "git::https://h/a",
		"git::https://u:secret@h/a?sshkey=/&x":  "git::https://h/a",
		"foo::https://u:secret@h/a?x":           "foo::https://h/a",
		"ftp://u:secret@h/a":                    "ftp://h/a",
		"git@github.com:o/r":                    "git::ssh://github.com/o/r",
		"${meta.x}?secret":                      "${meta.x}",
		"https://h:secret/a?x=secret%zzsecret ": "https://h:secret/a",
	} {
		same.As(t, want, Shown(text), text, " is shown as")
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"git::https://u:p@h/r.git//s?ref=v1", "git@h:o/r", "github.com/o/r/s", "file:///x"} {
		f.Add(text, "checksum", sum)
	}
	f.Fuzz(func(t *testing.T, text, name, value string) {
		Shown(text)
		s, err := Parse(text, map[string]string{name: value})
		if err != nil {
			return
		}
		if strings.HasPrefix(s.URL.String(), "-") || strings.HasPrefix(s.URL.Host, "-") || strings.HasPrefix(s.Ref, "-") {
			t.Errorf("%q, %q=%q: a program could take it for an option: %s %s", text, name, value, s.URL, s.Ref)
		}
	})
}
