package stats

import (
	"os"
	"strconv"
	"strings"
)

// Megahertz reads the speed of a CPU of this machine: its base frequency, else its highest, else what the kernel measures now. It is 0 when the machine
// does not say.
func Megahertz() float64 {
	for _, name := range []string{"base_frequency", "cpuinfo_max_freq"} {
		if kilohertz, err := readNumber("/sys/devices/system/cpu/cpu0/cpufreq", name); err == nil {
			return float64(kilohertz) / 1000
		}
	}
	text, _ := os.ReadFile("/proc/cpuinfo") // stays 0
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "cpu MHz" {
			mhz, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return mhz
		}
	}
	return 0
}
