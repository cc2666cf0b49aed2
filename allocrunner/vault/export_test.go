package vault

import "net/http"

// Use has the hook send its requests over a transport.
func (h *Hook) Use(t http.RoundTripper) { h.client.http = &http.Client{Transport: t} }
