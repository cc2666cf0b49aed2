// Package jobspec reads Nomad job files, HCL2 or JSON.
//
// Parse promises that every block and argument of the job specification ends in the api.Job, and that what is unknown
// is an error with its position. A text in HCL can make it use any amount of time, memory and stack: package bounded
// has limits for them. The package starts nothing, and reads no files but the job file, the variable files and those
// that the job file's functions name. Package review lists the parts of a job that one machine can't honour.
package jobspec

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/internal/hcleval"
)

// ErrInvalid marks every error about the content of a job file, a variable file or a variable. A file that can't be
// read has another error.
var ErrInvalid = errors.New("invalid job file")

// Config holds the texts that Parse reads. Body is required.
type Config struct {
	// Filename names the job file in errors. The job file is JSON if its extension is ".json" or its Body begins with
	// "{". File functions are relative to its folder, unless Dir is set.
	Filename string

	// Body is the whole text of the job file, at most 4 MiB.
	Body []byte

	// Dir is the folder for relative paths of file functions; empty for Filename's folder.
	Dir string

	// Vars are values of input variables, "name=value", as from -var. They win over VarFiles; the last of a name wins.
	Vars []string

	// VarFiles are paths of variable files, HCL or (named *.json) JSON, as from -var-file. They win over Environ; later
	// files win over earlier ones.
	VarFiles []string

	// VarText is the text of a variable file, HCL. It wins over VarFiles.
	VarText string

	// NoFiles makes functions that read files errors, for a text from somebody who may not read this machine's files.
	NoFiles bool

	// FromFiles receives the texts of the job that functions read from files, so that messages can mask them. It may be
	// nil.
	FromFiles *FromFiles

	// AsWritten makes Parse return the job as it is written: not canonical, and without defaults.
	AsWritten bool

	// Environ is an environment, "KEY=value". Only NOMAD_VAR_name is read, and only for variables that the job file
	// declares.
	Environ []string

	// Audience is the audience of each task's default identity, whatever the job file says. If it is empty, the job
	// file's stays.
	Audience string
}

// Parse reads a job file. Unless cfg.AsWritten is set, the job is canonical and has the defaults that a Nomad server
// adds. Errors about places in the text are of type *Error; all errors about content satisfy errors.Is(err,
// ErrInvalid).
func Parse(cfg Config) (*api.Job, error) {
	cfg.Dir = cmp.Or(cfg.Dir, filepath.Dir(cfg.Filename))
	if err := checkText(cfg.Filename, cfg.Body); err != nil {
		return nil, err
	}
	for _, v := range cfg.Vars {
		if name, _, _ := strings.Cut(v, "="); !utf8.ValidString(v) {
			return nil, fmt.Errorf("%w: -var %q is not UTF-8 text; base64encode it, and have the task decode it",
				ErrInvalid, strings.ToValidUTF8(name, "?"))
		}
	}
	job, err := decode(cfg)
	if err != nil {
		return nil, err
	}
	if path := find(reflect.ValueOf(job), notUTF8); path != "" {
		return nil, fmt.Errorf("%w: %s of the job is not UTF-8 text; base64encode it, and have the task decode it",
			ErrInvalid, strings.TrimPrefix(path, "."))
	}
	eachMap(reflect.ValueOf(job), func(m reflect.Value) {
		if m.Len() == 0 && m.CanSet() { // a server treats a block without entries as no block: meta {}
			m.SetZero()
		}
	})
	if cfg.AsWritten {
		return job, nil
	}
	job.Canonicalize()
	addServerDefaults(job, cfg.Audience)
	return job, nil
}

func decode(cfg Config) (*api.Job, error) {
	if IsJSON(cfg) {
		if len(cfg.Vars) > 0 || len(cfg.VarFiles) > 0 || strings.TrimSpace(cfg.VarText) != "" {
			return nil, fmt.Errorf("%w: %s is JSON, which has no variables; leave out -var and -var-file", ErrInvalid,
				cfg.Filename)
		}
		return parseJSON(cfg.Filename, cfg.Body)
	}
	return parseHCL(cfg)
}

// IsJSON reports whether a job file is JSON, and so has neither functions nor variables.
func IsJSON(cfg Config) bool {
	trimmed := bytes.TrimSpace(cfg.Body)
	return strings.EqualFold(filepath.Ext(cfg.Filename), ".json") || len(trimmed) > 0 && trimmed[0] == '{'
}

// MaxSubmission is the length of the longest job file whose text is kept, in bytes: Nomad's job_max_source_size.
const MaxSubmission = 1 << 20

// Submission returns the text of a job file as clients submit it with its job. It has no values of variables, which may
// be secret. It is nil for a text that is longer than MaxSubmission.
func Submission(cfg Config) *api.JobSubmission {
	if len(cfg.Body) > MaxSubmission {
		return nil
	}
	format := "hcl2"
	if IsJSON(cfg) {
		format = "json"
	}
	return &api.JobSubmission{Source: string(cfg.Body), Format: format}
}

// ReadFile returns cfg with the Body and the Filename of the job file at path; "-" is stdin. Errors: fs.ErrNotExist,
// fs.ErrPermission, and ErrInvalid when path is not a regular file.
func ReadFile(path string, stdin io.Reader, cfg Config) (Config, error) {
	var err error
	cfg.Filename = path
	if path == "-" {
		cfg.Filename = "<stdin>"
		cfg.Body, err = hcleval.ReadBounded(stdin, "standard input")
	} else {
		cfg.Body, err = hcleval.ReadRegular(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cfg, fmt.Errorf("job file %q: %w", path, fs.ErrNotExist)
	case errors.Is(err, fs.ErrPermission):
		return cfg, fmt.Errorf("job file %q can't be read by this user: %w", path, fs.ErrPermission)
	case err != nil:
		return cfg, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return cfg, nil
}

// checkText refuses input that is not text, for which a parser has no clear message.
func checkText(name string, body []byte) error {
	switch {
	case len(body) > hcleval.MaxFileBytes:
		return fmt.Errorf("%w: %s is larger than %d MiB", ErrInvalid, name, hcleval.MaxFileBytes>>20)
	case len(bytes.TrimSpace(body)) == 0:
		return fmt.Errorf("%w: %s is empty; it needs a job block", ErrInvalid, name)
	case bytes.IndexByte(body, 0) >= 0 || !utf8.Valid(body):
		return fmt.Errorf("%w: %s is not UTF-8 text; is it a program or an archive?", ErrInvalid, name)
	}
	return nil
}
