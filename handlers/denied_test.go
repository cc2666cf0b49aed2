package handlers_test

import (
	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// The denials of the fake authenticator.
var (
	unauthorized     = &auth.Denial{Kind: apierror.Unauthorized, Reason: auth.NoToken}
	forbidden        = &auth.Denial{Kind: apierror.Forbidden, Reason: auth.BadSignature}
	permissionDenied = &auth.Denial{Kind: apierror.PermissionDenied, Reason: auth.MissingCapability}
)
