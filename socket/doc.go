// Package socket promises a Unix listener that is safe from birth.
//
// The socket file appears at its path complete: listening, with its mode and its owner, whatever the
// umask; nobody ever sees it otherwise. A path may have any length and hold any byte that a file name may.
// What is in the way is never deleted, unless it is a socket that nobody listens on. Every connection
// that Accept returns carries the credentials of its peer, and there are never more of them than was agreed.
//
// The directory of the socket may belong to somebody who is not trusted, such as the user of a task.
// All work is therefore done relative to the opened directory, symbolic links are followed only where
// root or this process's user made them, and files are told apart by device and inode.
//
// It never knows what is spoken on a connection, who may do what, or what a token is. It needs Linux
// and a mounted /proc.
package socket
