// Package socket promises a Unix listener that is safe from the start.
//
// The socket file appears at its path complete: listening, with its mode and its owner, whatever the umask. A path may have any length and
// hold any byte that a file name may. A file at the path is never deleted, unless it is a socket that nobody listens on. Every connection
// that Accept returns has the credentials of its peer, and their number is bounded.
//
// The directory of the socket may belong to somebody who is not trusted, such as the user of a task. All work is therefore done relative to
// the opened directory, symbolic links are followed only where root or this process's user made them, and files are identified by device
// and inode.
//
// It knows nothing of HTTP, rights or tokens. It needs Linux and a mounted /proc.
package socket
