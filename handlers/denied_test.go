package handlers_test

import "taskapi/auth"

// denied is a denial of the fake door.
func denied(status int, body string) *auth.Denial { return &auth.Denial{Status: status, Body: body} }
