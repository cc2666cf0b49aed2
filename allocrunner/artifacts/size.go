package artifacts

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units are the units of sizes, as Nomad's settings have them. The longer ones come first.
var units = []struct {
	name  string
	bytes float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"b", 1}, {"", 1},
}

// ParseSize reads a number of bytes, such as 500MB or 2GiB.
func ParseSize(text string) (int64, error) {
	lower := strings.ToLower(text)
	for _, u := range units {
		digits, ok := strings.CutSuffix(lower, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if size := n * u.bytes; err == nil && size >= 1 && size <= math.MaxInt64/2 {
			return int64(size), nil
		}
		break
	}
	return 0, fmt.Errorf("%q must be a number of bytes of at least 1, such as 500MB or 2GiB", text)
}

// shownSize returns a number of bytes for people.
func shownSize(n int64) string {
	f, unit := float64(n), "B"
	for _, larger := range []string{"kB", "MB", "GB", "TB"} {
		if f < 1000 {
			break
		}
		f, unit = f/1000, larger
	}
	return fmt.Sprintf("%g %s", math.Round(f*10)/10, unit)
}
