package keeper

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
)

// maxFiles is how many files come with one message at most: the kernel takes a few more.
const maxFiles = 200

// errFileLimit: the files that came with a request could not be taken.
var errFileLimit = errors.New("the keeper has as many files open as it may: raise the limit of open files")

// A requestReader reads requests with their files (SCM_RIGHTS, unix(7)). The kernel hands over the files with the first
// byte of their message, and never the files of two messages at once.
type requestReader struct {
	conn      *net.UnixConn
	in        *bufio.Reader
	files     []*os.File // received files that no request has taken yet
	truncated bool       // some of them have not
}

// take returns as many received files. Errors: they have not come.
func (r *requestReader) take(n int) ([]*os.File, error) {
	if n > len(r.files) || r.truncated {
		r.close()
		return nil, errFileLimit
	}
	files := r.files[:n:n]
	r.files = r.files[n:]
	return files, nil
}

// next reads a request and its files, which the caller closes. refused is errFileLimit if the files could not be
// received; then only that request has failed. After an error nothing more can be read.
func (r *requestReader) next() (req request, files []*os.File, refused, err error) {
	if err := readFrame(r.in, &req); err != nil {
		return req, nil, nil, err
	}
	if req.Files < 0 || req.Files > maxFiles {
		return req, nil, nil, fmt.Errorf("request %d says that %d files come with it", req.ID, req.Files)
	}
	if r.truncated && len(r.files) < req.Files {
		r.close()
		return req, nil, errFileLimit, nil
	}
	if len(r.files) < req.Files {
		return req, nil, nil, fmt.Errorf("%d files came with request %d, which says %d", len(r.files), req.ID,
			req.Files)
	}
	if extra := len(r.files) - req.Files; extra > 0 && r.in.Buffered() == 0 { // otherwise the next request's
		return req, nil, nil, fmt.Errorf("%d files more came with request %d than it says", extra, req.ID)
	}
	files, r.files = r.files[:req.Files:req.Files], r.files[req.Files:]
	return req, files, nil, nil
}

// close closes the files that no request has taken.
func (r *requestReader) close() {
	drivers.CloseFiles(r.files)
	r.files, r.truncated = nil, false
}

// filesReader reads the connection and collects the files.
type filesReader struct{ *requestReader }

func (r filesReader) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*(maxFiles+1)))
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(p, oob) // close-on-exec
	r.truncated = r.truncated || flags&unix.MSG_CTRUNC != 0
	messages, _ := unix.ParseSocketControlMessage(oob[:max(oobn, 0)]) // a failed read brings no files
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m)
		for _, fd := range fds {
			r.files = append(r.files, os.NewFile(uintptr(fd), "received"))
		}
	}
	if errors.Is(err, io.EOF) || n == 0 && err == nil && len(p) > 0 { // io.ReadFull takes no wrapped one for an end
		return 0, io.EOF
	}
	return max(n, 0), err
}
