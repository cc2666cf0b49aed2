package output

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// CheckOutput returns a check's output for people. A page for browsers is only described, as "404 Not Found, 469 bytes
// of text/html".
func CheckOutput(c api.AllocCheckStatus) string {
	text := strings.TrimSpace(c.Output)
	kind, _, _ := strings.Cut(http.DetectContentType([]byte(text)), ";")
	if kind != "text/html" && kind != "text/xml" {
		return text
	}
	text = fmt.Sprintf("%d bytes of %s", len(c.Output), kind)
	if c.StatusCode != 0 {
		text = fmt.Sprintf("%d %s, %s", c.StatusCode, http.StatusText(c.StatusCode), text)
	}
	return text
}
