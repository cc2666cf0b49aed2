package drivers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/launch"
	"taskapi/allocrunner/taskenv"
)

// LookUp finds the program that command names: an absolute path means that file and no other; anything else is looked
// for in the task directory's local/, in the task directory, and then, without a slash, in the PATH of env, the task's
// own environment (KEY=value). A plain file found in the task directory is made executable; links that lead out of it
// are followed only to what is executable already. The error is a *StartError.
func LookUp(taskDir, command string, env []string) (string, error) {
	if command == "" || strings.Contains(command, "\x00") {
		return "", &StartError{Reason: fmt.Sprintf("command %q can't name a program", command), Err: fs.ErrInvalid}
	}
	if filepath.IsAbs(command) {
		if _, err := os.Stat(command); os.IsNotExist(err) {
			return "", notFound("%s", launch.Problem(command))
		}
		return command, nil // whether the kernel will execute it is known at the start
	}
	var problem string
	for _, dir := range []string{filepath.Join(taskDir, "local"), taskDir} {
		found, err := inTaskDir(taskDir, dir, command)
		if err == nil {
			return found, nil
		}
		if !os.IsNotExist(err) && problem == "" {
			problem = fmt.Sprintf(" (%v)", err)
		}
	}
	if strings.Contains(command, "/") {
		return "", notFound("command %q was not found in the task directory %s%s: put it there, or give an absolute "+
			"path", command, taskDir, problem)
	}
	found, path := inPath(command, env)
	if found != "" {
		return found, nil
	}
	return "", notFound("command %q was not found in %s/local, in %s or in the task's PATH %q%s: install it, set "+
		"PATH in the task's env block, or give an absolute path",
		command, taskDir, taskDir, path, problem)
}

func notFound(format string, args ...any) error {
	return &StartError{Reason: fmt.Sprintf(format, args...), Err: fs.ErrNotExist}
}

// inTaskDir looks for command below dir, which is the task directory or in it.
func inTaskDir(taskDir, dir, command string) (string, error) {
	full := filepath.Join(dir, command)
	name, err := filepath.Rel(taskDir, full)
	if err != nil || !filepath.IsLocal(name) {
		return "", fs.ErrNotExist
	}
	root, err := os.OpenRoot(taskDir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	info, err := root.Stat(name)
	if err != nil {
		if executable(full) { // a link out of the task directory
			return full, nil
		}
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no plain file", full)
	}
	if info.Mode()&0o111 != 0o111 {
		if err := makeExecutable(root, name); err != nil && info.Mode()&0o111 == 0 {
			return "", fmt.Errorf("%s can't be made executable: %w", full, err)
		}
	}
	return full, nil
}

// makeExecutable opens a file inside the root and changes the mode of the open file, so that a file that the task puts
// in its place meanwhile stays as it is.
func makeExecutable(root *os.Root, name string) (err error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO is not waited for
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is no plain file")
	}
	return f.Chmod(info.Mode().Perm() | 0o111)
}

// executable reports whether path leads to a plain file that somebody may run.
func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// inPath returns the program of that name in the last PATH of the environment, and that PATH. The program is empty if
// it is in none of the directories.
func inPath(name string, env []string) (found, path string) {
	path = taskenv.DefaultPath
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if found := filepath.Join(dir, name); filepath.IsAbs(dir) && executable(found) {
			return found, path
		}
	}
	return "", path
}

// Missing returns why a command can't be found on this machine, empty when it can be, or when it may lie in the task's
// directory. env is as LookUp has it.
func Missing(command string, env []string) string {
	if filepath.IsAbs(command) {
		return launch.Problem(command)
	}
	if command == "" || strings.Contains(command, "/") {
		return ""
	}
	found, path := inPath(command, env)
	if found != "" {
		return ""
	}
	return fmt.Sprintf("command %q is not in the task's PATH %q", command, path)
}
