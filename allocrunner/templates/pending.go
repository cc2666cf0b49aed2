package templates

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
)

// pendingActions are what is still to be done for a task's process: the change_mode of each file that was written after
// the process had begun to start, and the scripts with run_on_first_render until they have run. They are saved, so that
// another process of taskapi does them if this one is killed, or leaves, before.
type pendingActions struct {
	req       *interfaces.TaskPrestartRequest
	templates []*templateState

	mu      sync.Mutex        // guards the fields below; held while a file is written: no process starts meanwhile
	files   map[string]string // digests with blanks between them, by the templates' destinations
	scripts bool              // those of the first rendering have not run
	saved   map[string]string // was passed to Keep
}

// The keys of the saved actions.
const (
	savedScripts = "scripts"
	savedFile    = "file " // and the destination
)

// newPending returns what is still to be done for the process of a request. A file whose digest is not the saved one
// was never written.
func newPending(req *interfaces.TaskPrestartRequest, templates []*templateState) *pendingActions {
	p := &pendingActions{req: req, templates: templates, files: map[string]string{}, saved: maps.Clone(req.Kept)}
	p.scripts = !req.Restored || p.saved[savedScripts] != ""
	for _, t := range templates {
		to := ptr.Deref(t.DestPath)
		was := p.saved[savedFile+to]
		if !req.Restored || was == "" {
			continue
		}
		content, err := readAs(req, t.place)
		switch is := digest(content); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil: // such as one that is not for the task's user: it may have been written
			p.files[to] = was
		case slices.Contains(strings.Fields(was), is):
			p.files[to] = is
		}
	}
	return p
}

// digest tells a file from an older one. It is too short to check guesses of a secret in the file with it.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return fmt.Sprintf("%x", sum[:2])
}

// errUnsaved: a file was not written, because it can't be saved that its change_mode is pending.
var errUnsaved = errors.New("the pending change_mode can't be saved")

// write calls a function that writes the file of a template, after it has saved that the template's change_mode is
// pending. Errors: errUnsaved, the function's.
func (p *pendingActions) write(t *templateState, digest string, write func() error) error {
	switch ptr.Deref(t.ChangeMode) {
	case modeSignal, modeRestart, modeScript:
	default:
		return write()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	to, before := ptr.Deref(t.DestPath), maps.Clone(p.files)
	p.files[to] += " " + digest // either file may be there when another process goes on
	p.saveLocked()
	err := p.req.Sync()
	if err != nil {
		err = fmt.Errorf("%w: %w", errUnsaved, err)
	} else {
		err = write()
	}
	if err != nil {
		p.files = before
		return err
	}
	p.files[to] = digest
	return nil
}

// written returns the templates whose change_mode is pending.
func (p *pendingActions) written() (written []*templateState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.templates {
		if p.files[ptr.Deref(t.DestPath)] != "" {
			written = append(written, t)
		}
	}
	return written
}

// handOver notes that the process has read, or will read, all files as they are now.
func (p *pendingActions) handOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files = map[string]string{}
	p.saveLocked()
	if p.saved[savedScripts] != "" {
		_ = p.req.Sync() // before the process starts, which does not wait for a full disk
	}
}

// firstScripts returns the scripts with run_on_first_render that have not run.
func (p *pendingActions) firstScripts() []*api.ChangeScript {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.firstScriptsLocked()
}

func (p *pendingActions) firstScriptsLocked() (scripts []*api.ChangeScript) {
	for _, t := range p.templates {
		s := t.ChangeScript
		if p.scripts && ptr.Deref(t.ChangeMode) == modeScript && s != nil && ptr.Deref(s.RunOnFirstRender) {
			scripts = append(scripts, s)
		}
	}
	return scripts
}

// scriptsRan notes that the scripts with run_on_first_render have run.
func (p *pendingActions) scriptsRan() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scripts = false
	p.saveLocked()
}

// saveLocked passes the actions to Keep if they are others than before.
func (p *pendingActions) saveLocked() {
	all := map[string]string{}
	for to, digests := range p.files {
		all[savedFile+to] = digests
	}
	if len(p.firstScriptsLocked()) > 0 {
		all[savedScripts] = "due"
	}
	if !maps.Equal(all, p.saved) {
		p.saved = all
		p.req.Keep(all)
	}
}
