// Command taskapi runs one allocation of a Nomad job file on this machine and gives each of its tasks a socket where Nomad's HTTP
// API answers.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"taskapi/allocrunner"
)

func main() {
	if code, kept := allocrunner.KeeperMain(os.Args); kept {
		os.Exit(code)
	}
	allocrunner.Undumpable()
	args, err := handedArgs(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "taskapi: %v\n", err)
		os.Exit(exitUsage)
	}
	os.Exit(run(context.Background(), args, world{
		stdin:  os.Stdin,
		stdout: os.Stdout,
		stderr: os.Stderr,
		env:    os.Environ(),
	}))
}

// world is all that a command may touch of the process around it.
type world struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            []string // KEY=value
}

// getenv is the value of an environment variable, empty when it is not set.
func (w world) getenv(key string) string {
	for i := len(w.env) - 1; i >= 0; i-- {
		if e := w.env[i]; len(e) > len(key) && e[:len(key)] == key && e[len(key)] == '=' {
			return e[len(key)+1:]
		}
	}
	return ""
}
