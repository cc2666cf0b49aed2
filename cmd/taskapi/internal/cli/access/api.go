package access

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
)

// allocPlaceholder stands for the allocation's ID in a PATH of taskapi api.
const allocPlaceholder = "{alloc}"

type apiRequest struct {
	method  string
	data    string // the body as --data gives it
	hasData bool
	path    string
}

func API(w base.Environment) *cobra.Command {
	var at base.TargetFlags
	var req apiRequest
	cmd := &cobra.Command{
		Use:        "api [flags] PATH",
		SuggestFor: []string{"curl", "request", "metrics"},
		Short:      "Send a request to an allocation's API, as its operator",
		Long: `Sends a request to the API of a running allocation as its operator, and prints the answer's body.

The request goes to the operator's socket. The operator's token is read from its file, and shown nowhere. {alloc} in
PATH stands for the allocation's ID.

Exit code: 0 for an answer with a status below 400, else 1, with the status and the reason on standard error.`,
		Example: `  taskapi api '/v1/allocation/{alloc}/checks?pretty'
  taskapi api --alloc hello -d '{"Signal": "SIGHUP", "Task": "greeter"}' '/v1/client/allocation/{alloc}/signal'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.path, req.hasData = args[0], cmd.Flags().Changed("data")
			if err := req.check(); err != nil {
				return err
			}
			found, err := at.Find(cmd.Context(), nil)
			if base.IsUsage(err) && !at.Given(nil) {
				return fmt.Errorf("%w\nwith --alloc", err)
			}
			if err != nil {
				return err
			}
			return req.send(cmd.Context(), found, w)
		},
	}
	at.Add(cmd, w, base.ToChange)
	cmd.ValidArgsFunction = nil // PATH is none of them
	f := cmd.Flags()
	f.StringVarP(&req.method, "request", "X", "", "`METHOD` (default GET, or PUT with --data)")
	f.StringVarP(&req.data, "data", "d", "", "`BODY` of the request; @FILE reads it from a file, - from standard input")
	return cmd
}

func (r *apiRequest) check() error {
	if strings.Contains(r.path, "://") && !strings.HasPrefix(r.path, "/") {
		return base.Usagef("PATH %q is a URL: give only its path, such as /v1/allocations", r.path)
	}
	r.path = "/" + strings.TrimPrefix(r.path, "/")
	if r.method == "" {
		r.method = http.MethodGet
		if r.hasData {
			r.method = http.MethodPut
		}
	}
	r.method = strings.ToUpper(r.method)
	if _, err := http.NewRequest(r.method, "http://taskapi"+r.path, nil); err != nil {
		return base.Usagef("%s %q is not a request: %w", r.method, r.path, err)
	}
	return nil
}

func (r *apiRequest) body(w base.Environment) (io.Reader, error) {
	if r.data == "-" {
		text, err := io.ReadAll(w.Stdin)
		if err != nil {
			return nil, fmt.Errorf("body on standard input: %w", err)
		}
		return bytes.NewReader(text), nil
	}
	if file, ok := strings.CutPrefix(r.data, "@"); ok {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, base.Usagef("--data %s: %w", r.data, agent.UnwrapPath(err))
		}
		return bytes.NewReader(text), nil
	}
	return strings.NewReader(r.data), nil
}

// send sends the request and prints the answer as it comes: an event stream has no end.
func (r *apiRequest) send(ctx context.Context, t base.Target, w base.Environment) error {
	c := t.Client()
	defer c.Close()
	body, err := r.body(w)
	if err != nil {
		return err
	}
	path := strings.ReplaceAll(r.path, allocPlaceholder, t.ID)
	resp, err := c.Do(ctx, r.method, path, body)
	if err != nil {
		return t.Explain(ctx, c, fmt.Errorf("allocation %s: %w", output.ShortID(t.ID), err))
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		reason, _ := io.ReadAll(resp.Body) // the status says enough
		return fmt.Errorf("%s %s: %s: %s", r.method, path, resp.Status, bytes.TrimSpace(reason))
	}
	if _, err := io.Copy(w.Stdout, resp.Body); err != nil {
		return fmt.Errorf("the connection broke during the answer: %w", err)
	}
	if output.IsTerminal(w.Stdout) { // most answers end without a line break
		_, err = fmt.Fprintln(w.Stdout)
	}
	return err
}
