package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/identity"
	"taskapi/identity/privatefile"
	"taskapi/socket"
)

// operatorHook gives the operator a socket and a token while the allocation lives.
type operatorHook struct {
	side        *wiring
	server      *server
	stopRenewal context.CancelFunc
	renewal     sync.WaitGroup
}

var (
	_ interfaces.RunnerPrerunHook  = (*operatorHook)(nil)
	_ interfaces.RunnerEndingHook  = (*operatorHook)(nil)
	_ interfaces.RunnerPostrunHook = (*operatorHook)(nil)
	_ interfaces.ShutdownHook      = (*operatorHook)(nil)
)

// Name implements interfaces.RunnerHook.
func (h *operatorHook) Name() string { return "operator_api" }

// Ending implements interfaces.RunnerEndingHook: somebody may follow the end, or want it to be quicker.
func (h *operatorHook) Ending(ctx context.Context, req *interfaces.RunnerPrerunRequest) error {
	return h.Prerun(ctx, req)
}

// Prerun implements interfaces.RunnerPrerunHook.
func (h *operatorHook) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	s, alloc := h.side, req.Alloc
	if err := s.checkTaskSockets(alloc); err != nil {
		return err
	}
	if err := s.giveOperatorToken(alloc); err != nil {
		return err
	}
	var err error
	h.server, err = s.serve(socketSpec{
		path:  s.paths.OperatorSocket,
		owner: auth.Owner{AllocationID: alloc.ID, UID: uint32(os.Geteuid())},
		uid:   -1,
		gid:   -1,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.stopRenewal = cancel
	h.renewal.Go(func() { s.renewOperatorToken(ctx, alloc) })
	return nil
}

const (
	// operatorTTL is how long the operator's token is good at most: what was read of it over somebody's shoulder is soon of no use.
	operatorTTL = time.Hour
	// operatorLook is how often the operator's token is looked at: timers stand still while the machine sleeps, and its expiry does not.
	operatorLook = 30 * time.Second
)

// renewOperatorToken replaces the operator's token when half of its life is over, or its key has left the ring, until ctx ends.
func (s *wiring) renewOperatorToken(ctx context.Context, alloc *api.Allocation) {
	said := false // what goes wrong, once
	for {
		replaced := s.keyring.Replaced() // before the look: what changes during it is looked at again
		wait := min(operatorLook, max(renewRetry, s.operatorTTL()/4))
		if err := s.giveOperatorToken(alloc); err != nil {
			if !said {
				s.logger.Warn("the operator's token is not renewed; it is tried again", "error", err)
			}
			said, wait = true, renewRetry
		} else {
			said = false
		}
		select {
		case <-ctx.Done():
			return
		case <-replaced:
		case <-time.After(wait):
		}
	}
}

// operatorTTL is how long a new token of the operator is good.
func (s *wiring) operatorTTL() time.Duration { return min(s.settings.IdentityTTL, operatorTTL) }

// giveOperatorToken leaves the operator's token of an earlier taskapi in place when it is good for long, and else writes a new one.
func (s *wiring) giveOperatorToken(alloc *api.Allocation) error {
	if s.operatorTokenLasts(alloc, time.Now()) {
		return nil
	}
	return s.writeOperatorToken(alloc)
}

// operatorTokenLasts reports that the token in the file is the one that would be written, with more than half of its life before it.
func (s *wiring) operatorTokenLasts(alloc *api.Allocation, now time.Time) bool {
	token, err := ReadOperatorToken(s.paths.OperatorToken)
	if err != nil {
		return false
	}
	verified, err := s.verifier.Verify(token, now)
	if err != nil {
		return false
	}
	have, want := verified.Claims, s.operatorClaims(alloc)
	if have.ExpiresAt-now.Unix() <= (have.ExpiresAt-have.IssuedAt)/2 || have.ExpiresAt > want.ExpiresAt {
		return false
	}
	have.ID, have.IssuedAt, have.NotBefore, have.ExpiresAt = want.ID, want.IssuedAt, want.NotBefore, want.ExpiresAt
	return reflect.DeepEqual(have, want)
}

func (s *wiring) operatorClaims(alloc *api.Allocation) identity.Claims {
	claims := s.claims(alloc, "", string(identity.RoleOperator), s.operatorTTL())
	claims.Role = identity.RoleOperator
	return claims
}

// writeOperatorToken signs a token of the operator and puts it in place of the one before.
func (s *wiring) writeOperatorToken(alloc *api.Allocation) error {
	token, err := s.keyring.Sign(s.operatorClaims(alloc))
	if err != nil {
		return fmt.Errorf("sign the operator's token: %w", err)
	}
	if err := privatefile.Write(s.paths.OperatorToken, []byte(token)); err != nil {
		return fmt.Errorf("write the operator's token: %w", err)
	}
	return nil
}

// Postrun implements interfaces.RunnerPostrunHook. Those who follow the allocation hear of its end before the socket goes.
func (h *operatorHook) Postrun(context.Context) error {
	h.side.flush()
	if h.server == nil {
		return nil
	}
	h.stopRenewal()
	h.renewal.Wait()
	return h.server.close()
}

// Shutdown implements interfaces.ShutdownHook.
func (h *operatorHook) Shutdown() {
	if err := h.Postrun(context.Background()); err != nil {
		h.side.logger.Warn("the operator's socket could not be closed", "error", err)
	}
}

// checkTaskSockets makes sure, before anything runs, that each task's socket will have an address that clients can dial. A
// task's own directory does not exist yet: one with a name that is too long stands in for it.
func (s *wiring) checkTaskSockets(alloc *api.Allocation) error {
	dir := s.paths.Alloc
	for _, t := range alloc.GetTaskGroup().Tasks {
		if socket.Dialable(s.paths.TaskSocket(t.Name)) {
			continue
		}
		standIn := filepath.Join(dir, ".address-"+strings.Repeat("x", 110)) // 110 more than a socket address holds
		if err := os.Mkdir(standIn, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("allocation directory: %w", err)
		}
		_, remove, err := socket.ShortLink(s.runtimeDirs, filepath.Join(standIn, filepath.Base(s.paths.TaskSocket(t.Name))))
		if err != nil {
			err = fmt.Errorf("task %q: %w", t.Name, err)
		}
		return errors.Join(err, remove(), os.Remove(standIn))
	}
	return nil
}

// maxTokenFile is more than a token that any server takes.
const maxTokenFile = 64 << 10

// ReadOperatorToken reads an operator's token from its file.
func ReadOperatorToken(path string) (string, error) {
	token, _, err := privatefile.Read(path, maxTokenFile)
	return string(token), err
}
