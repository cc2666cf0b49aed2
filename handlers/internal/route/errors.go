package route

import (
	"context"
	"errors"
	"fmt"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// abandoned reports whether err says no more than that the client has gone away, or that the server's end cut the
// request off. Nothing went wrong then, but nothing was done either, which a client that still reads has to learn.
func abandoned(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}

// Denied reports whether a request ended because its token is not valid any more.
func Denied(err error) bool {
	_, denied := errors.AsType[*auth.Denial](err)
	return denied
}

// Invalid returns the error for a request that is wrong in the way that the words say.
func Invalid(format string, args ...any) error {
	return apierror.New(apierror.Invalid, fmt.Sprintf(format, args...))
}
