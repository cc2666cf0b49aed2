package packaging_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// table matches a row of a table whose second column is a command.
var table = regexp.MustCompile("(?m)^\\| [^|]+ \\| `([^`]+)` \\|$")

// section returns what stands under a heading of docs/install.md.
func section(t *testing.T, heading string) string {
	t.Helper()
	text := must.Read(t, "../docs/install.md")
	_, rest, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/install.md has no section %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// commands returns the commands under a heading of docs/install.md, without comments.
func commands(t *testing.T, heading string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(section(t, heading)) {
		if line, isCode := strings.CutPrefix(line, "    "); isCode {
			line, _, _ = strings.Cut(line, "    #")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// TestInstallCommands: each command of docs/install.md is run by a test, or can't be.
func TestInstallCommands(t *testing.T) {
	const byPackage, byRelease = "TestPackage", "TestRelease"
	sections := map[string]string{"systemd": byPackage, "Removing": byPackage, "Another module path": "TestModule"}
	others := map[string]string{
		"apt-get install ./taskapi_0.2.0-1_amd64.deb":      byPackage,
		"dnf install ./taskapi-0.2.0-1.x86_64.rpm":         "needs Fedora; TestRelease compares what both packages hold",
		"docker load -i taskapi_0.2.0_linux_amd64.oci.tar": byRelease,
		"docker run -v ./job.nomad.hcl:/etc/taskapi/job.nomad.hcl:ro -v ./programs:/programs:ro " +
			"-v state:/var/lib/taskapi taskapi:0.2.0": byRelease,
		"sha256sum --check SHA256SUMS":                    byRelease,
		"taskapi version":                                 byRelease,
		"make release && diff dist/SHA256SUMS SHA256SUMS": byRelease,
		"make test-release":                               "runs TestRelease",
		"taskapi takeover --all":                          "TestTakeover... of cmd/taskapi",
		"systemctl kill --kill-whom=main -s USR1 UNIT; while systemctl -q is-active UNIT; do sleep 0.1; done; " +
			"systemctl start UNIT": byPackage,
	}
	text := must.Read(t, "../docs/install.md")
	for _, heading := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(text), -1) {
		if sections[heading[1]] != "" {
			continue
		}
		for _, line := range commands(t, heading[1]) {
			if others[line] == "" {
				t.Errorf("no test runs %q of the section %q", line, heading[1])
			}
			delete(others, line)
		}
	}
	for line := range others {
		t.Errorf("docs/install.md does not have %q", line)
	}
	if version := programVersion(t); !slices.Contains(strings.FieldsFunc(string(text), func(r rune) bool {
		return strings.ContainsRune("_- \n:`", r)
	}), version) {
		t.Errorf("docs/install.md names another version than %s", version)
	}
}

// programVersion returns the version in the source.
func programVersion(t *testing.T) string {
	t.Helper()
	text := must.Read(t, "../cmd/taskapi/main.go")
	found := regexp.MustCompile(`(?m)^var version = "(.+)"$`).FindSubmatch(text)
	if found == nil {
		t.Fatal("cmd/taskapi/main.go has no version")
	}
	return string(found[1])
}
