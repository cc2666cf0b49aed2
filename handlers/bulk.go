package handlers

import (
	"context"
	"time"

	"taskapi/handlers/apierror"
)

// maxBulky is how many bulky answers a socket makes and sends at a time, and bulky bodies it reads. One may take some 20 MB while it is encoded and
// until its client has read it, and 256 connections, as many as a socket has, would take all of a machine's memory.
const maxBulky = 2

// bulkyWait is how long a request waits for its turn: longer than clients are given that do not read.
const bulkyWait = writeTimeout + 5*time.Second

// enterBulky waits until the socket may make another bulky answer, which lasts until this one is sent. A handler that waits for something else
// calls it after that. Errors: TooManyBulky when it has had no turn in bulkyWait; CutOff when the server stops; *auth.Denial when the token is not
// valid any more; ctx's.
func (r *request) enterBulky(ctx context.Context) error {
	s := r.server
	select {
	case s.bulk <- struct{}{}:
		r.leaveBulky = func() { <-s.bulk }
		return nil
	default:
	}
	late := time.NewTimer(bulkyWait)
	defer late.Stop()
	select {
	case s.bulk <- struct{}{}:
		r.leaveBulky = func() { <-s.bulk }
	case <-late.C:
		full := apierror.New(apierror.TooManyBulky, maxBulky)
		full.RetryAfter = writeTimeout
		return full
	case <-s.draining.Done():
		return apierror.New(apierror.CutOff)
	case <-ctx.Done():
		return ctx.Err()
	}
	return r.recheck()
}

// enterBulkyWrite does so for a request whose body, or the answer to it, may be long, before that is read. Its client may go while it waits, and
// then nothing is done. Errors: those of enterBulky.
func (r *request) enterBulkyWrite() error {
	if err := r.enterBulky(r.Context()); err != nil {
		return err
	}
	r.renewBodyTime()
	return nil
}

// endBulky lets the next bulky answer be made, when the client has taken this one.
func (r *request) endBulky() {
	if r.leaveBulky != nil {
		r.leaveBulky()
	}
}
