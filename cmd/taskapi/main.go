// Command taskapi runs one allocation of a Nomad job file on this machine and gives each of its tasks a socket where
// Nomad's HTTP API answers.
package main

import (
	"os"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/internal/proc"
	"taskapi/socket"
)

// version is the program's: the only place of it. Tests have the linker set another one (-X main.version=...).
var version = "0.2.0"

func main() {
	if code, isKeeper := allocrunner.KeeperMain(os.Args, shortAddress); isKeeper {
		os.Exit(code)
	}
	_ = proc.Undumpable() // keys and tokens stay out of core dumps; a kernel that can't do that is no reason not to run
	os.Exit(cli.Main(version))
}

// shortAddress gives a socket an address that clients can dial. A keeper has no variable XDG_RUNTIME_DIR.
func shortAddress(path string) (addr string, remove func() error, err error) {
	return socket.ShortLink(socket.RuntimeDirs(os.Geteuid(), ""), path)
}
