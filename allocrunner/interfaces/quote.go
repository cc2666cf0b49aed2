package interfaces

import (
	"strconv"
	"strings"
)

// Quote quotes a name in a sentence. A name that has quotes, such as `service: "web" check`, which Nomad gives a check
// without a name, stands in backquotes. So it has one spelling everywhere.
func Quote(name string) string {
	if strings.Contains(name, `"`) && strconv.CanBackquote(name) {
		return "`" + name + "`"
	}
	return strconv.Quote(name)
}
