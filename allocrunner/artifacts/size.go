package artifacts

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ParseSize reads a number of bytes, such as 500MB or 2GiB.
func ParseSize(text string) (int64, error) {
	unit := strings.ToLower(strings.TrimLeft(text, "0123456789. "))
	number, err := strconv.ParseFloat(strings.TrimSpace(text[:len(text)-len(unit)]), 64)
	thousand := 1000.0
	if len(unit) == 3 && unit[1] == 'i' {
		unit, thousand = unit[:1]+unit[2:], 1024
	}
	power := slices.Index([]string{"b", "kb", "mb", "gb", "tb"}, cmp.Or(unit, "b"))
	size := number * math.Pow(thousand, float64(power))
	if err != nil || power < 0 || size < 1 || size > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q must be a number of bytes of at least 1, such as 500MB or 2GiB", text)
	}
	return int64(size), nil
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
