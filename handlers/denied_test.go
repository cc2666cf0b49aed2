package handlers_test

import "taskapi/auth"

// The denials of the fake authenticator.
var (
	unauthorized     = &auth.Denial{Reason: auth.NoToken}
	forbidden        = &auth.Denial{Reason: auth.BadSignature}
	permissionDenied = &auth.Denial{Reason: auth.MissingCapability}
)
