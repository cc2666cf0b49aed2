package packaging_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// exposures are what `systemd-analyze security` may say of the units at most, in tenths. The root of taskapi@
// and of the agent gives tasks users of their own, and that takes capabilities.
var exposures = map[string]string{
	"taskapi@.service": "34", "taskapi-user@.service": "19", "taskapi-agent.service": "34",
}

// older matches what a systemd before 254 says of the units.
var older = regexp.MustCompile(`(?m)^.*Unknown key( name)? 'DelegateSubgroup' in section .*, ignoring\.\n`)

// TestUnits: systemd understands every line of the units, and they shut out as much as before.
func TestUnits(t *testing.T) {
	needMachine(t, "systemd-analyze")
	units, err := filepath.Glob("systemd/*")
	if err != nil || len(units) != len(exposures) {
		t.Fatalf("%q, %v; want the units of %v", units, err, exposures)
	}
	for _, unit := range units {
		text := must.Read(t, unit)
		// verify looks for the program and for manual pages
		text = []byte(strings.NewReplacer("/usr/bin/taskapi ", "/bin/true ").Replace(string(text)))
		file := filepath.Join(t.TempDir(), filepath.Base(unit))
		must.OK(t, os.WriteFile(file, text, 0o600))
		out, err := command(t, "systemd-analyze", "verify", "--man=no", file).CombinedOutput()
		if out = older.ReplaceAll(out, nil); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
		most := exposures[filepath.Base(unit)]
		out, err = command(t, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+most,
			file).CombinedOutput()
		if err != nil {
			t.Errorf("%s: the exposure is above %s tenths: %v\n%s", unit, most, err, out)
		}
	}
}
