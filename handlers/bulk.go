package handlers

import (
	"context"
	"time"

	"taskapi/handlers/apierror"
)

// maxBulky is how many bulky answers a socket makes and sends at a time. One may take some 20 MB while it is encoded and until its client has
// read it, and 256 connections, as many as a socket has, would take all of a machine's memory.
const maxBulky = 2

// bulkyWait is how long a request waits for its turn: longer than clients are given that do not read.
const bulkyWait = writeTimeout + 5*time.Second

// enterBulky waits until the socket may make another bulky answer, which lasts until leave is called. Errors: TooManyBulky when it has had
// no turn in bulkyWait; CutOff when the server stops; *auth.Denial when the token is not valid any more; ctx's.
func (r *request) enterBulky(ctx context.Context) (leave func(), err error) {
	s := r.server
	leave = func() { <-s.bulk }
	select {
	case s.bulk <- struct{}{}:
		return leave, nil
	default:
	}
	late := time.NewTimer(bulkyWait)
	defer late.Stop()
	select {
	case s.bulk <- struct{}{}:
	case <-late.C:
		full := apierror.New(apierror.TooManyBulky, maxBulky)
		full.RetryAfter = writeTimeout
		return nil, full
	case <-s.draining.Done():
		return nil, apierror.New(apierror.CutOff)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := r.recheck(); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}
