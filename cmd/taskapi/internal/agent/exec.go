package agent

import (
	"context"
	"errors"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
)

func (s allocAdapter) Exec(ctx context.Context, req handlers.ExecRequest) (handlers.ExecSession, error) {
	session, err := s.AllocRunner.Exec(ctx, interfaces.ExecRequest(req))
	if err != nil {
		return nil, apiError(err)
	}
	return execSession{session}, nil
}

// execSession is a runner's with the API's errors.
type execSession struct{ interfaces.ExecSession }

func (s execSession) Wait() (int, error) {
	exit, err := s.ExecSession.Wait()
	switch {
	case errors.Is(err, interfaces.ErrDetached):
		err = apierror.New(apierror.Unavailable, "taskapi stops, and with it the command").Because(err)
	case errors.Is(err, interfaces.ErrTaskNotRunning):
		err = apierror.New(apierror.Conflict, "the task has ended, and with it the command").Because(err)
	case err == nil && exit.Err != "":
		err = apierror.New(apierror.Unavailable, "how the command ended is not known")
	}
	return exit.ExitCode, err
}
