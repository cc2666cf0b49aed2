package agent

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
)

// Files returns a runner's files as the API serves them. What a task's process reads over the API is no more than it could open itself.
func (s allocAdapter) Files(caller *auth.Peer) handlers.Files {
	if caller == nil {
		return fileAdapter{s.AllocRunner.Files(nil)}
	}
	return fileAdapter{s.AllocRunner.Files(&interfaces.Reader{UID: caller.UID, GID: caller.GID})}
}

// fileAdapter has the API's errors.
type fileAdapter struct{ files interfaces.Files }

var _ handlers.Files = fileAdapter{}

func (f fileAdapter) List(path string, most int) ([]*api.AllocFileInfo, error) {
	list, err := f.files.List(path, most)
	return list, fileError(err)
}

func (f fileAdapter) Stat(path string) (*api.AllocFileInfo, error) {
	info, err := f.files.Stat(path)
	return info, fileError(err)
}

func (f fileAdapter) Open(path string, span handlers.Span) (handlers.Frames, error) {
	frames, err := f.files.Open(path, spanOf(span))
	return frames, fileError(err)
}

func (f fileAdapter) Logs(task, kind string, span handlers.Span) (handlers.Frames, error) {
	frames, err := f.files.Logs(task, kind, spanOf(span))
	return frames, fileError(err)
}

func spanOf(s handlers.Span) interfaces.Span {
	return interfaces.Span{Offset: s.Offset, FromEnd: s.FromEnd, Limit: s.Limit, Follow: s.Follow}
}
