package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"taskapi/allocrunner/taskenv"
	"taskapi/cmd/taskapi/internal/cli/base"
)

// versionInfo is what version prints: Version of the program, the Commit that it was built from with its Date (RFC
// 3339), empty when that is not known, and the version of Nomad whose API it speaks. The commit of a changed work tree
// ends with -dirty.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Date    string `json:"date,omitempty"`
	Nomad   string `json:"nomad"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func versionCommand(w base.Environment) *cobra.Command {
	var out base.OutputFlags
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, its commit, and the version of Nomad's API",
		Long:  "Prints the version, the commit that it was built from, and the version of Nomad's API.",
		Example: `  taskapi version
  taskapi version -t '{{.Commit}}'`,
		RunE: func(*cobra.Command, []string) error {
			return out.Print(w, versionOf(w, debug.ReadBuildInfo), nil, func() error {
				return w.Printf("%s", versionLine(w))
			})
		},
	}
	base.AddOutput(cmd, &out)
	return cmd
}

// versionOf returns the version, with the build information of the Go toolchain.
func versionOf(w base.Environment, read func() (*debug.BuildInfo, bool)) versionInfo {
	info := versionInfo{Version: w.Version, Nomad: taskenv.NomadVersion, Go: runtime.Version(), OS: runtime.GOOS,
		Arch: runtime.GOARCH}
	build, ok := read()
	if !ok {
		return info
	}
	dirty := false
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Commit = s.Value
		case "vcs.time":
			info.Date = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty && info.Commit != "" {
		info.Commit += "-dirty"
	}
	return info
}

// shortCommit is how much of a commit's hash is shown to people.
const shortCommit = 12

func (v versionInfo) line() string {
	facts := []string{"Nomad API " + v.Nomad, v.Go, v.OS + "/" + v.Arch}
	if v.Commit != "" {
		hash, dirty, _ := strings.Cut(v.Commit, "-")
		if dirty != "" {
			dirty = "-" + dirty
		}
		facts = append([]string{"commit " + hash[:min(len(hash), shortCommit)] + dirty}, facts...)
	}
	return fmt.Sprintf("taskapi %s (%s)\n", v.Version, strings.Join(facts, ", "))
}

// versionLine returns what "version" and --version print.
func versionLine(w base.Environment) string { return versionOf(w, debug.ReadBuildInfo).line() }
