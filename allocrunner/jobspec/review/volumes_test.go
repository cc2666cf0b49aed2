package review_test

import (
	"slices"
	"strings"
	"testing"

	"taskapi/allocrunner/jobspec"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/allocrunner/volumes"
	"taskapi/internal/must"
)

// TestVolumes are those of the machine, and mounted where a link can be.
func TestVolumes(t *testing.T) {
	machine := host
	machine.Volumes = []volumes.Volume{{Name: "data", Path: "/srv"}, {Name: "logs", Path: "/srv", ReadOnly: true},
		{Name: "part[0]", Path: "/srv"}}
	const good = `type = "host"
		source = "data"`
	mount := func(lines string) string { return "volume = \"v\"\ndestination = \"/data\"\n" + lines }
	for name, tc := range map[string]struct {
		volume, mount string
		want          string // empty for no finding
	}{
		"good": {good, mount(""), ""},
		"all modes": {good + "\naccess_mode = \"single-node-multi-writer\"\nattachment_mode = \"file-system\"", mount(""),
			""},
		"of each": {"type = \"host\"\nsource = \"part\"\nper_alloc = true", mount(""), ""},
		"read": {"type = \"host\"\nsource = \"logs\"\nread_only = true", mount(""),
			"warning: …read_only: a task of raw_exec gets a link"},
		"read by one": {good, mount("read_only = true"),
			"warning: …read_only: a task of raw_exec gets a link"},
		"a place to come": {good, "volume = \"v\"\ndestination = \"${NOMAD_TASK_DIR}/x\"", ""},
		"csi": {strings.Replace(good, "host", "csi", 1), mount(""),
			`refused: …volume type: it is "csi"; it must be "host": there are no CSI`},
		"no type":   {`source = "data"`, mount(""), "refused: …volume type: it is left out"},
		"no source": {`type = "host"`, mount(""), "refused: …volume source: it is left out"},
		"unknown": {strings.Replace(good, "data", "nope", 1), mount(""),
			`refused: …volume source: the machine has no host volume "nope"; it has: data, logs, part[0]. Declare it`},
		"unknown of each": {good + "\nper_alloc = true", mount(""),
			`refused: …volume source: the machine has no host volume "data[0]"`},
		"write to logs": {strings.Replace(good, "data", "logs", 1), mount(""),
			`refused: …volume source: the host volume "logs" can only be read here: set read_only = true`},
		"unknown mode": {good + "\naccess_mode = \"multi-node-single-writer\"", mount(""),
			`refused: …volume access_mode: it is "multi-node`},
		"reader writes": {good + "\naccess_mode = \"single-node-reader-only\"", mount(""),
			`refused: …volume access_mode: it is "single-node-reader-only"; single-node-reader-only needs read_only`},
		"block device": {good + "\nattachment_mode = \"block-device\"", mount(""),
			`refused: …volume attachment_mode`},
		"sticky": {good + "\nsticky = true", mount(""), `note: …sticky`},
		"of no volume": {good, "volume = \"w\"\ndestination = \"/data\"",
			`refused: …volume_mount volume: the group has no volume "w"; it has: "v"`},
		"no destination": {good, "volume = \"v\"", `refused: …volume_mount destination: it is left out`},
		"outside": {good, "volume = \"v\"\ndestination = \"../alloc/data\"",
			`refused: …volume_mount destination`},
		"the whole": {good, "volume = \"v\"\ndestination = \"/\"", `refused: …volume_mount destination`},
		"secrets": {good, "volume = \"v\"\ndestination = \"/secrets\"",
			`refused: …volume_mount destination`},
		"twice": {good, mount("}\nvolume_mount {\nvolume = \"v\"\ndestination = \"data/\""),
			`refused: …volume_mount destination: two mounts have`},
		"propagation":      {good, mount("propagation_mode = \"bidirectional\""), `note: …propagation_mode`},
		"label":            {good, mount("selinux_label = \"z\""), `warning: …selinux_label`},
		"a name with a no": {good, "volume = \"${meta.x}\"\ndestination = \"/data\"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			text := "job \"j\" {\ngroup \"g\" {\nvolume \"v\" {\n" + tc.volume + "\n}\ntask \"t\" {\ndriver = \"raw_exec\"\n" +
				"config { command = \"x\" }\nvolume_mount {\n" + tc.mount + "\n}\n}\n}\n}"
			job := must.Get(jobspec.Parse(jobspec.Config{Filename: "job.hcl", Body: []byte(text)}))(t)
			_, findings, err := review.Group(job, "", machine)
			must.OK(t, err)
			severity, words, _ := strings.Cut(tc.want, "…")
			if tc.want == "" && len(findings) > 0 || tc.want != "" && !slices.ContainsFunc(findings,
				func(f review.Finding) bool {
					return strings.HasPrefix(f.String(), severity) && strings.Contains(f.String(), words)
				}) {
				t.Errorf("%v, want %q", findings, tc.want)
			}
		})
	}
}
