// Package socket listens on Unix sockets that are safe from the start.
//
// The socket file appears at its path complete: listening, with its mode and its owner, whatever the umask. A path may
// have any length and hold any byte that a file name may have. A file at the path is never deleted, unless it is a
// socket that nobody listens on. Every connection that Accept returns has the credentials of its peer, and the number
// of connections is bounded.
//
// The directory of the socket may belong to a user who is not trusted, such as that of a task. So all work is done
// relative to the opened directory, symbolic links are followed only if root or this process's user made them, and
// files are identified by device and inode.
//
// The package knows nothing of HTTP, rights or tokens. It needs Linux and a mounted /proc.
package socket
