package look

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/httpserve"
	"taskapi/cmd/taskapi/internal/ui"
)

func UI(w base.Environment) *cobra.Command {
	var listen string
	var noOpen bool
	c := ui.Config{Environment: w, Users: w.Users()}
	cmd := &cobra.Command{
		Use:   "ui [flags]",
		Short: "Show allocations in the browser, and act on them",
		Long: `Serves a page on this machine until it is interrupted. It shows the allocations that status lists, with
their tasks, checks, output, events, CPU and memory, and restarts, signals and stops them, after a question. It prints a
link, and on a desktop opens it: the link works once, within a minute. Enter prints another link. Only processes of
root and of this user can connect (with sudo, also of the user who called it).`,
		Example: `  taskapi ui
  taskapi ui --listen 127.0.0.1:4647 --no-open`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Address, err = httpserve.ParseAddress(listen); err == nil && !c.Address.Local() {
				err = fmt.Errorf("%s: other machines may reach this address: give 127.0.0.1 or ::1, and come with 'ssh -L'",
					c.Address)
			}
			if c.Address.Private = true; err == nil {
				c.Listeners, err = ui.Listen(c.Address)
			}
			if err != nil {
				return base.Usagef("--listen %w", err)
			}
			ctx, release := base.UntilSignal(cmd.Context())
			defer release()
			server := ui.New(ctx, c)
			link := server.Link()
			if err := w.Printf("open this link within a minute; Enter prints another one, Ctrl-C ends the page:\n%s\n",
				link); err != nil {
				return err
			}
			if !noOpen && os.Geteuid() != 0 && w.Getenv("DISPLAY")+w.Getenv("WAYLAND_DISPLAY") != "" {
				remove, err := openLink(link, w)
				defer remove()
				if err != nil {
					w.Warnf("no browser was started: %v", err)
				}
			}
			signal.Ignore(syscall.SIGTTIN) // in the background, there is nothing to read
			go func() {                    // ends with the input, or with the process
				for lines := bufio.NewScanner(w.Stdin); lines.Scan(); {
					_ = w.Printf("%s\n", server.Link()) // to nobody, perhaps
				}
			}()
			return server.Serve()
		},
	}
	base.AddDataDir(cmd, &c.DataDir)
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0",
		"`ADDRESS:PORT` to listen on, or unix:///PATH; port 0 takes any")
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "only print the link, also on a desktop")
	return cmd
}

// openLink opens a link in the desktop's browser. Every user can read a process's arguments, so the browser is given a
// file that only this user can read, and that leads to the link. remove removes the file.
func openLink(link string, w base.Environment) (remove func(), err error) {
	dir, err := os.MkdirTemp(w.Getenv("XDG_RUNTIME_DIR"), "taskapi-ui-")
	file := filepath.Join(dir, "open.html")
	if err == nil {
		err = os.WriteFile(file, fmt.Appendf(nil, "<meta http-equiv=\"refresh\" content=\"0; url=%s\">\n", link), 0o600)
	}
	cmd := exec.Command("xdg-open", file)
	cmd.Env, cmd.SysProcAttr = w.Env, &syscall.SysProcAttr{Setsid: true} // Ctrl-C is not for the browser
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		go func() { _ = cmd.Wait() }() // it may end with the browser
	}
	return func() { _ = os.RemoveAll(dir) }, err // nobody needs it any more
}
