package handlers

import (
	"context"
	"errors"
	"fmt"

	"taskapi/handlers/apierror"
)

// abandoned reports whether err says no more than that the client has gone away, or that the server's end cut the request off: nothing
// went wrong, and nothing was done either, which a client that still reads has to learn.
func abandoned(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}

// invalid returns the error for a request that is wrong in the way that the words say.
func invalid(format string, args ...any) error {
	return apierror.New(apierror.Invalid, fmt.Sprintf(format, args...))
}
